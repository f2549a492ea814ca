//! Packages of environments.

use std::{
    fs, io,
    net::IpAddr,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use tailstep_core::egress::EgressRule;
use tailstep_egress::Resolver;
use tailstep_local::{LocalHands, workspace_dir};
use tailstep_runtime::ports::{Hands, HandsError, ToolOrder};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::{bash, hands, key, order};

/// Whether this host's sandboxes have pip; without it two laws cannot be looked at.
pub(crate) fn has_pip() -> bool {
    let pip = Command::new("/usr/bin/python3").args(["-m", "pip", "--version"]).output();
    let found = pip.is_ok_and(|output| output.status.success());
    if !found {
        println!("SKIPPED: /usr/bin/python3 has no pip, so no package is installed");
    }
    found
}

fn with_packages(session: &str, seq: u64, command: &str, pip: &[&str]) -> ToolOrder {
    let mut order = order(session, seq, command);
    order.environment.packages.pip = pip.iter().map(|&package| package.to_owned()).collect();
    order
}

pub(crate) async fn packages_are_installed_once_for_all_sessions() {
    if !has_pip() {
        return;
    }
    let (data, wheels) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let hands = hands_with_a_wheel(data.path(), wheels.path());
    let command = "python3 -c 'import spoken; print(\"module\", spoken.WORD)'; spoken; \
                   touch /opt/tailstep/packages/x 2>&1";
    let (a, b) = (
        with_packages("a", 1, command, &["spoken==1.0"]),
        with_packages("b", 1, command, &["spoken==1.0"]),
    );
    let (a, b) = tokio::join!(hands.execute(&a), hands.execute(&b));
    for reply in [a.unwrap(), b.unwrap()] {
        for said in ["module heard", "the program heard", "Read-only file system"] {
            assert!(reply.text.contains(said), "{said}: {}", reply.text);
        }
    }
    let layers = || {
        let all = fs::read_dir(data.path().join("layers")).unwrap();
        all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let built = layers();
    assert_eq!(built.len(), 1, "{built:?}");
    let place = data.path().join("layers").join(&built[0]);
    let made_at = fs::metadata(&place).unwrap().modified().unwrap();
    // Another process finds it: the wheel is not needed any more.
    hands.close().await;
    let again = self::hands(data.path(), |config| {
        config.packages.directory = Some(wheels.path().to_owned());
    });
    fs::remove_file(wheels.path().join("spoken-1.0-py3-none-any.whl")).unwrap();
    let reply = again.execute(&with_packages("c", 1, "spoken", &["spoken==1.0"])).await.unwrap();
    assert!(reply.text.contains("the program heard"), "{}", reply.text);
    assert_eq!(fs::metadata(&place).unwrap().modified().unwrap(), made_at);
    // A session without packages sees none.
    assert!(bash(&again, "d", 1, "spoken").await.unwrap().text.contains("not found"));
}

/// Every name is this machine.
struct AllHere;

#[async_trait::async_trait]
impl Resolver for AllHere {
    async fn resolve(&self, _name: &str) -> io::Result<Vec<IpAddr>> {
        Ok(vec![IpAddr::from([127, 0, 0, 1])])
    }
}

/// A package index of one wheel (PEP 503).
async fn index_server(wheel: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && client.read_buf(&mut head).await.unwrap_or(0) > 0
            {
            }
            let page = "<a href=\"/spoken-1.0-py3-none-any.whl\">spoken-1.0-py3-none-any.whl</a>";
            let (kind, body) = match head.starts_with(b"GET /spoken-1.0") {
                true => ("application/octet-stream", wheel.clone()),
                false => ("text/html", page.as_bytes().to_vec()),
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n",
                body.len()
            );
            let _ = client.write_all(&[head.as_bytes(), &body].concat()).await;
        }
    });
    port
}

pub(crate) async fn packages_come_from_registries_through_the_way_out() {
    if !has_pip() {
        return;
    }
    let (data, wheels) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    hands_with_a_wheel(data.path(), wheels.path()).close().await;
    let wheel = fs::read(wheels.path().join("spoken-1.0-py3-none-any.whl")).unwrap();
    let port = index_server(wheel).await;
    let with_rules = |registries: Vec<EgressRule>| {
        let data = tempfile::tempdir().unwrap();
        let hands = hands(data.path(), |config| {
            config.egress.allow_private = vec![format!("127.0.0.1:{port}").parse().unwrap()];
            config.egress.resolver = Arc::new(AllHere);
            config.packages.registries = registries;
            config.packages.environment = vec![
                ("PIP_INDEX_URL".into(), format!("http://index.test:{port}/simple")),
                ("PIP_TRUSTED_HOST".into(), "index.test".into()),
                ("PIP_RETRIES".into(), "0".into()),
            ];
        });
        (data, hands)
    };
    let rule = EgressRule { ports: vec![port], ..EgressRule::for_host("index.test") };
    let (_data, open) = with_rules(vec![rule]);
    let reply = open.execute(&with_packages("a", 1, "spoken", &["spoken==1.0"])).await.unwrap();
    assert!(reply.text.contains("the program heard"), "{}", reply.text);
    // The session's own sandbox has no network all the same.
    let reply = bash(&open, "a", 2, "exec 3<>/dev/tcp/127.0.0.1/3128").await.unwrap();
    assert!(reply.is_error && reply.text.contains("refused"), "{}", reply.text);
    let (_data, closed) = with_rules(Vec::new());
    let refused = closed.execute(&with_packages("a", 1, "true", &["spoken==1.0"])).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("pip"), "{refused}");
}

/// A layer has a limit, and a manager that is not there is named.
pub(crate) async fn what_keeps_a_layer_from_being_made_is_told() {
    if !has_apt() {
        return;
    }
    let (data, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let large = "mkdir -p p/DEBIAN p/opt && printf 'Package: tailstep-large\\nVersion: 1\\nArchitecture: all\\n\
                 Maintainer: t <t@example.com>\\nDescription: large\\n' >p/DEBIAN/control && \
                 head -c 400000000 /dev/zero >p/opt/large && dpkg-deb -Zgzip -z1 -b p large.deb >/dev/null && \
                 { cat p/DEBIAN/control; echo Filename: ./large.deb; stat -c 'Size: %s' large.deb; \
                 echo SHA256: $(sha256sum <large.deb | cut -c-64); } >Packages && rm -r p";
    let made = Command::new("bash").args(["-c", large]).current_dir(source.path()).status();
    assert!(made.unwrap().success());
    let hands = hands(data.path(), |config| {
        config.packages.directory = Some(source.path().to_owned());
        config.packages.layer_bytes_max = 50 << 20;
    });
    let mut ask = order("a", 1, "true");
    ask.environment.packages.apt = vec!["tailstep-large".to_owned()];
    let failed = hands.execute(&ask).await.unwrap_err().to_string();
    assert!(failed.contains("more than the 52428800 that a layer may have"), "{failed}");
    assert_eq!(fs::read_dir(data.path().join("layers")).unwrap().count(), 0, "nothing is left");
    for (program, packages) in [("go", "example.com/x"), ("gem", "x")] {
        if ["/usr/bin", "/usr/local/bin", "/bin"]
            .iter()
            .any(|at| Path::new(at).join(program).exists())
        {
            continue;
        }
        let mut ask = order(program, 1, "true");
        let wanted = vec![packages.to_owned()];
        match program {
            "go" => ask.environment.packages.go = wanted,
            _ => ask.environment.packages.gem = wanted,
        }
        let failed = hands.execute(&ask).await.unwrap_err().to_string();
        assert!(failed.contains(&format!("there is no {program} here")), "{failed}");
    }
}

/// Whether this host can make and unpack packages of Debian's family; else one law cannot be looked at.
pub(crate) fn has_apt() -> bool {
    let programs = ["/usr/bin/apt-get", "/usr/bin/dpkg-deb"];
    let found = programs.iter().all(|program| Path::new(program).exists());
    if !found {
        println!("SKIPPED: this host has no apt-get and dpkg-deb, so no apt package is installed");
    }
    found
}

/// A program that needs a library of another package, and a package that is there already.
pub(crate) async fn apt_packages_come_with_what_they_need() {
    if !has_apt() {
        return;
    }
    const MAKE: &str = r#"set -e; cd "$1"
make() {
    mkdir -p $1/DEBIAN; echo "Package: $1
Version: 1.0
Architecture: all
Maintainer: tests <tests@example.com>
Depends: $2
Description: a package of the tests" >$1/DEBIAN/control
    cat >$1/DEBIAN/postinst <<'END'
#!/bin/sh
update-alternatives --install \
    /usr/bin/tailstep-hail hail /usr/bin/tailstep-greeter 1
exit 1
END
    chmod 755 $1/DEBIAN/postinst
    dpkg-deb --root-owner-group -b $1 $1.deb >/dev/null
    { cat $1/DEBIAN/control; echo "Filename: ./$1.deb
Size: $(stat -c %s $1.deb)
SHA256: $(sha256sum $1.deb | cut -d' ' -f1)
"; } >>Packages
    rm -r $1
}
mkdir -p tailstep-greeter/usr/bin tailstep-words/usr/share/perl5
printf '#!/usr/bin/perl
use TailstepWords; print TailstepWords::said(), "\n";
' >tailstep-greeter/usr/bin/tailstep-greeter
chmod 755 tailstep-greeter/usr/bin/tailstep-greeter
printf 'package TailstepWords; sub said { "well met" } 1;
' >tailstep-words/usr/share/perl5/TailstepWords.pm
make tailstep-greeter 'tailstep-words (>= 1.0), dpkg'
make tailstep-words 'dpkg'
"#;
    let (data, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let made = Command::new("bash").args(["-c", MAKE, "make"]).arg(source.path()).status();
    assert!(made.unwrap().success());
    let hands =
        hands(data.path(), |config| config.packages.directory = Some(source.path().to_owned()));
    let ask = |session: &str, apt: &[&str]| {
        let mut order =
            order(session, 1, "tailstep-greeter; tailstep-hail; ls /opt/tailstep/packages/apt/usr");
        order.environment.packages.apt = apt.iter().map(|&package| package.to_owned()).collect();
        order
    };
    let reply = hands.execute(&ask("a", &["tailstep-greeter=1.0"])).await.unwrap();
    assert!(reply.text.contains("well met\nwell met\nbin\nshare"), "{}", reply.text);
    let failed = hands.execute(&ask("b", &["tailstep-nothing"])).await.unwrap_err().to_string();
    for said in ["apt:", "tailstep-nothing"] {
        assert!(failed.contains(said), "{failed}");
    }
    fs::remove_file(source.path().join("Packages")).unwrap();
    let failed = hands.execute(&ask("c", &["tailstep-words"])).await.unwrap_err().to_string();
    assert!(failed.contains("dpkg-scanpackages"), "{failed}");
}

pub(crate) async fn a_failed_installation_is_told_and_not_repeated_at_once() {
    if !has_pip() {
        return;
    }
    let (data, wheels) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let hands = hands_with_a_wheel(data.path(), wheels.path());
    let ask = |session: &str| with_packages(session, 1, "touch ran; ls", &["missing==9"]);
    let failed = hands.execute(&ask("a")).await.unwrap_err();
    let HandsError::Unprepared { told } = &failed else { panic!("{failed:?}") };
    for said in ["this call did not run", "pip:", "missing==9"] {
        assert!(told.contains(said), "{told}");
    }
    let begun = Instant::now();
    let again = hands.execute(&ask("b")).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_millis(200), "it was built again");
    assert_eq!(again.to_string(), failed.to_string());
    assert_eq!(fs::read_dir(data.path().join("layers")).unwrap().count(), 0, "nothing is left");
    assert!(!workspace_dir(data.path(), &key("a")).join("ran").exists());
}

/// Hands whose packages come from a directory that holds one wheel: a module and a program.
fn hands_with_a_wheel(data: &Path, wheels: &Path) -> Arc<LocalHands> {
    const MAKE: &str = "import sys, zipfile
z = zipfile.ZipFile(sys.argv[1] + '/spoken-1.0-py3-none-any.whl', 'w')
z.writestr('spoken.py', 'WORD = \"heard\"\\ndef main(): print(\"the program \" + WORD)\\n')
info = 'spoken-1.0.dist-info/'
z.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: spoken\\nVersion: 1.0\\n')
z.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
z.writestr(info + 'entry_points.txt', '[console_scripts]\\nspoken = spoken:main\\n')
z.writestr(info + 'RECORD', '')
z.close()";
    let made = Command::new("python3").args(["-c", MAKE]).arg(wheels).status();
    assert!(made.unwrap().success());
    hands(data, |config| config.packages.directory = Some(wheels.to_owned()))
}
