//! What each package manager is told. A package's spelling was checked by the core and is quoted all
//! the same.

use std::{env::consts::ARCH, path::Path};

use tailstep_core::{agent::Packages, packages::Manager};

use super::{LAYER, SOURCE};

/// Said at the very end of an installation that worked.
pub(super) const DONE: &str = "tailstep: installed";

/// What sandboxes find first on their path, below the layer.
const PROGRAMS: [&str; 5] = ["python/bin", "npm/bin", "gem/bin", "go/bin", "cargo/bin"];

/// The path of a sandbox without a layer.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// The list of what a system of Debian's family has installed.
pub(super) const INSTALLED: &str = "/var/lib/dpkg/status";

/// Where a build sees the host's [`INSTALLED`].
pub(super) const HOST_INSTALLED: &str = "/mnt/dpkg-status";

/// The variables by which programs find what is in a layer.
pub(super) fn environment(layer: &Path, packages: &Packages) -> Vec<(String, String)> {
    let below = |name: &str| layer.join(name).display().to_string();
    let all = |names: &[&str]| names.iter().map(|name| below(name)).collect::<Vec<_>>().join(":");
    let mut path = all(&PROGRAMS);
    let mut python = below("python");
    let mut variables =
        vec![("NODE_PATH", below("npm/lib/node_modules")), ("GEM_PATH", below("gem"))];
    if !packages.apt.is_empty() {
        // A package's files lie where they would on the system, below a directory of their own.
        path = format!("{path}:{}", all(&["apt/usr/bin", "apt/bin", "apt/usr/sbin", "apt/sbin"]));
        path = format!("{path}:{}", below("apt/usr/games"));
        python = format!("{python}:{}", below("apt/usr/lib/python3/dist-packages"));
        let (multiarch, usr) = (format!("{ARCH}-linux-gnu"), "apt/usr");
        let libraries = all(&[
            &format!("{usr}/lib/{multiarch}"),
            &format!("apt/lib/{multiarch}"),
            &format!("{usr}/lib"),
        ]);
        let include = all(&[&format!("{usr}/include"), &format!("{usr}/include/{multiarch}")]);
        let configured =
            all(&[&format!("{usr}/lib/{multiarch}/pkgconfig"), &format!("{usr}/share/pkgconfig")]);
        variables.extend([
            ("LD_LIBRARY_PATH", libraries.clone()),
            ("LIBRARY_PATH", libraries),
            ("CPATH", include),
            ("PKG_CONFIG_PATH", configured),
            ("PERL5LIB", all(&["apt/perl", "apt/usr/share/perl5"])),
        ]);
    }
    variables.extend([("PATH", format!("{path}:{PATH}")), ("PYTHONPATH", python)]);
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Resolves with apt against what the root has, downloads, and unpacks into the layer. No script of a
/// package runs, which would need the rights of an administrator; but the other names that scripts give to
/// files (`update-alternatives(1)`) are read from them. Perl looks for compiled modules by its version,
/// which a link hides.
const APT: &str = r#"
state=/tmp/apt; mkdir -p $state/lists/partial $state/archives/partial $state/etc
if [ -n "SOURCE" ]; then
    [ -f SOURCE/Packages ] || [ -f SOURCE/Packages.gz ] || { echo 'the directory of packages has no index: make one with dpkg-scanpackages . > Packages'; exit 1; }
    echo "deb [trusted=yes] copy:SOURCE ./" >$state/sources
else
    . /usr/lib/os-release
    suites="$VERSION_CODENAME $VERSION_CODENAME-updates"
    case "$ID $(dpkg --print-architecture)" in
        debian\ *) from=${TAILSTEP_APT_MIRROR:-http://deb.debian.org}/debian; security=$from-security; parts=main ;;
        ubuntu\ amd64) from=${TAILSTEP_APT_MIRROR:-http://archive.ubuntu.com}/ubuntu; security=${TAILSTEP_APT_MIRROR:-http://security.ubuntu.com}/ubuntu; parts='main universe' ;;
        ubuntu\ *) from=${TAILSTEP_APT_MIRROR:-http://ports.ubuntu.com}/ubuntu-ports; security=$from; parts='main universe' ;;
        *) echo "apt packages of $ID are not known here"; exit 1 ;;
    esac
    signed="signed-by=/usr/share/keyrings/$ID-archive-keyring.gpg"
    for suite in $suites; do echo "deb [$signed] $from $suite $parts"; done >$state/sources
    echo "deb [$signed] $security $VERSION_CODENAME-security $parts" >>$state/sources
fi
for installed in HOST_INSTALLED INSTALLED /dev/null; do
    [ ! -r $installed ] || { cp $installed $state/status; break; }
done
cat >$state/config <<END
Dir::State "$state"; Dir::State::lists "$state/lists"; Dir::State::status "$state/status";
Dir::Cache "$state"; Dir::Cache::archives "$state/archives";
Dir::Etc "$state/etc"; Dir::Etc::sourcelist "$state/sources"; Dir::Etc::sourceparts "-"; Dir::Etc::parts "-"; Dir::Etc::preferencesparts "-";
Debug::NoLocking "true"; APT::Sandbox::User ""; APT::Install-Recommends "false"; Acquire::Languages "none";
END
export APT_CONFIG=$state/config
apt-get -qq -o APT::Update::Error-Mode=any update
apt-get -qq -y --download-only install -- "$@" >/dev/null
mkdir -p LAYER/apt
for archive in $state/archives/*.deb; do
    [ ! -f $archive ] || dpkg-deb -x $archive LAYER/apt
done
for archive in $state/archives/*.deb; do
    { dpkg-deb -I $archive postinst 2>/dev/null || true; } | sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' |
    { grep -oE -- '--(install|slave) +/[A-Za-z0-9/._+-]+ +[^ ]+ +/[A-Za-z0-9/._+-]+' || true; } |
    while read -r _ name _ file; do
        [ -e "LAYER/apt$file" ] && [ ! -e "LAYER/apt$name" ] || continue
        mkdir -p "LAYER/apt${name%/*}"
        ln -s "LAYER/apt$file" "LAYER/apt$name"
    done
done
for modules in LAYER/apt/usr/lib/*/perl5/*/; do
    [ ! -d $modules ] || ln -sfn $modules LAYER/apt/perl
done
rm -rf $state
"#;

/// Variables of a build: nothing is kept outside the layer. With `source` nothing is fetched.
pub(super) fn build_environment(source: Option<&str>) -> Vec<(String, String)> {
    let mut variables = vec![
        ("CARGO_HOME", "/tmp/cargo".to_owned()),
        ("CARGO_TARGET_DIR", "/tmp/cargo-target".to_owned()),
        ("GOPATH", "/tmp/go".to_owned()),
        ("GOCACHE", "/tmp/go-cache".to_owned()),
        ("GOFLAGS", "-modcacherw".to_owned()),
        ("GOBIN", format!("{LAYER}/go/bin")),
        // The host's own authorities too: Node brings a list and looks at no other.
        ("NODE_EXTRA_CA_CERTS", "/etc/ssl/certs/ca-certificates.crt".to_owned()),
        ("NPM_CONFIG_CACHE", "/tmp/npm".to_owned()),
        ("NPM_CONFIG_UPDATE_NOTIFIER", "false".to_owned()),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1".to_owned()),
        ("PIP_NO_CACHE_DIR", "1".to_owned()),
        ("PIP_NO_INPUT", "1".to_owned()),
    ];
    if let Some(source) = source {
        variables.push(("PIP_NO_INDEX", "1".to_owned()));
        variables.push(("PIP_FIND_LINKS", source.to_owned()));
        variables.push(("NPM_CONFIG_OFFLINE", "true".to_owned()));
        variables.push(("GOPROXY", format!("file://{source}")));
        variables.push(("GONOSUMDB", "*".to_owned()));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The file whose change says that a manager is another one.
pub(super) fn program(manager: Manager) -> &'static str {
    match manager {
        // What is there already is not in the layer.
        Manager::Apt => INSTALLED,
        Manager::Cargo => "/usr/bin/cargo",
        Manager::Gem => "/usr/bin/gem",
        Manager::Go => "/usr/bin/go",
        Manager::Npm => "/usr/bin/node",
        Manager::Pip => "/usr/bin/python3",
    }
}

/// One command that installs `packages` into the layer and says [`DONE`].
pub(super) fn install(manager: Manager, packages: &[String], offline: bool) -> String {
    let quoted = |package: &String| format!("'{}'", package.replace('\'', "'\\''"));
    let all = packages.iter().map(quoted).collect::<Vec<_>>().join(" ");
    let command = match manager {
        Manager::Apt => {
            let script = APT
                .replace("HOST_INSTALLED", HOST_INSTALLED)
                .replace("INSTALLED", INSTALLED)
                .replace("SOURCE", if offline { SOURCE } else { "" })
                .replace("LAYER", LAYER);
            // A shell of its own: the first command that fails ends it.
            format!("bash -ec {} apt {all}", quoted(&script))
        }
        Manager::Cargo => {
            let offline = if offline { " --offline" } else { "" };
            let mirror = "${TAILSTEP_CARGO_INDEX:+--config source.crates-io.replace-with=\\\"mirror\\\" \
                          --config source.mirror.registry=\\\"sparse+$TAILSTEP_CARGO_INDEX/\\\"}";
            // Cargo refuses a registry that replaces itself.
            let itself = "[ \"$TAILSTEP_CARGO_INDEX\" != https://index.crates.io ] || \
                          unset TAILSTEP_CARGO_INDEX";
            format!(
                "{itself}; cargo install{offline} {mirror} --locked --root {LAYER}/cargo -- {all}"
            )
        }
        Manager::Gem => {
            let local = if offline { " --local" } else { "" };
            let mirror =
                "${TAILSTEP_GEM_SOURCE:+--clear-sources --source \"$TAILSTEP_GEM_SOURCE\"}";
            format!(
                "gem install{local} {mirror} --no-document --install-dir {LAYER}/gem --bindir {LAYER}/gem/bin \
                 -- {all}"
            )
        }
        Manager::Go => packages
            .iter()
            .map(|package| match package.contains('@') {
                true => format!("go install -- {}", quoted(package)),
                false => format!("go install -- {}", quoted(&format!("{package}@latest"))),
            })
            .collect::<Vec<_>>()
            .join(" && "),
        Manager::Npm => format!(
            "npm install --global --prefix {LAYER}/npm --no-audit --no-fund --loglevel=error -- {all}"
        ),
        Manager::Pip => format!(
            "python3 -m pip install --quiet --root-user-action=ignore --target {LAYER}/python -- {all}"
        ),
    };
    let program = match manager {
        Manager::Apt => "apt-get",
        Manager::Pip => "python3",
        Manager::Npm | Manager::Gem | Manager::Go | Manager::Cargo => manager.as_str(),
    };
    let there = format!(
        "command -v {program} >/dev/null || {{ echo 'there is no {program} here: install it on the \
         host, or in the image that sandboxes see'; exit 1; }}"
    );
    // Other sandboxes have other users, who must be able to read it.
    format!("umask 022; ( {there}; {command} ) 2>&1 && chmod -R a+rX {LAYER}/* && echo '{DONE}'")
}

/// One command that says [`DONE`] if the layer holds no more than `bytes_max`. What an installer runs may
/// lie to it; then the sandbox's own limit is all that holds.
pub(super) fn weigh(bytes_max: u64) -> String {
    format!(
        "bytes=$(/usr/bin/du -sxB1 {LAYER} | /usr/bin/cut -f1); if [ \"$bytes\" -le {bytes_max} ]; then \
         echo '{DONE}'; else echo \"the packages take $bytes bytes, more than the {bytes_max} that a layer \
         may have\"; fi"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_words_behind_the_end_of_options() {
        let packages = ["a>=1,<2".to_owned(), "b'c".to_owned()];
        let command = install(Manager::Pip, &packages, false);
        assert!(command.contains(" -- 'a>=1,<2' 'b'\\''c' )"), "{command}");
        let go = install(Manager::Go, &["x.y/z".to_owned(), "x.y/w@v1".to_owned()], false);
        assert!(go.contains("go install -- 'x.y/z@latest' && go install -- 'x.y/w@v1'"), "{go}");
        for manager in Manager::ALL {
            let command = install(manager, &["x".to_owned()], true);
            assert!(command.ends_with(&format!("&& echo '{DONE}'")), "{command}");
        }
    }

    #[test]
    fn layers_come_first_on_the_path() {
        let environment = environment(Path::new(LAYER), &Packages::default());
        assert!(!environment.iter().any(|(name, _)| name == "LD_LIBRARY_PATH"));
        let path = &environment.iter().find(|(name, _)| name == "PATH").unwrap().1;
        assert!(path.starts_with("/opt/tailstep/packages/python/bin:"), "{path}");
        assert!(path.ends_with(PATH), "{path}");
    }
}
