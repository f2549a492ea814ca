//! What each package manager is told. A package's spelling was checked by the core and is quoted all
//! the same.

use std::path::Path;

use tailstep_core::packages::Manager;

use super::LAYER;

/// Said at the very end of an installation that worked.
pub(super) const DONE: &str = "tailstep: installed";

/// What sandboxes find first on their path, below the layer.
const PROGRAMS: [&str; 5] = ["python/bin", "npm/bin", "gem/bin", "go/bin", "cargo/bin"];

/// The path of a sandbox without a layer.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// The variables by which programs find what is in a layer.
pub(super) fn environment(layer: &Path) -> Vec<(String, String)> {
    let below = |name: &str| layer.join(name).display().to_string();
    let programs = PROGRAMS.map(below).join(":");
    [
        ("PATH", format!("{programs}:{PATH}")),
        ("PYTHONPATH", below("python")),
        ("NODE_PATH", below("npm/lib/node_modules")),
        ("GEM_PATH", below("gem")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

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
        Manager::Apt => "/usr/bin/apt-get",
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
        // Refused before it comes here: a sandbox has no lists of packages to start from.
        Manager::Apt => "echo 'apt packages cannot be installed here'; false".to_owned(),
        Manager::Cargo => {
            let offline = if offline { " --offline" } else { "" };
            format!("cargo install{offline} --locked --root {LAYER}/cargo -- {all}")
        }
        Manager::Gem => {
            let local = if offline { " --local" } else { "" };
            format!(
                "gem install{local} --no-document --install-dir {LAYER}/gem --bindir {LAYER}/gem/bin \
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
    // Other sandboxes have other users, who must be able to read it.
    format!("umask 022; {{ {command}; }} 2>&1 && chmod -R a+rX {LAYER}/* && echo '{DONE}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_words_behind_the_end_of_options() {
        let packages = ["a>=1,<2".to_owned(), "b'c".to_owned()];
        let command = install(Manager::Pip, &packages, false);
        assert!(command.contains(" -- 'a>=1,<2' 'b'\\''c'; }"), "{command}");
        let go = install(Manager::Go, &["x.y/z".to_owned(), "x.y/w@v1".to_owned()], false);
        assert!(go.contains("go install -- 'x.y/z@latest' && go install -- 'x.y/w@v1'"), "{go}");
        for manager in Manager::ALL {
            let command = install(manager, &["x".to_owned()], true);
            assert!(command.ends_with(&format!("&& echo '{DONE}'")), "{command}");
        }
    }

    #[test]
    fn layers_come_first_on_the_path() {
        let environment = environment(Path::new(LAYER));
        let path = &environment.iter().find(|(name, _)| name == "PATH").unwrap().1;
        assert!(path.starts_with("/opt/tailstep/packages/python/bin:"), "{path}");
        assert!(path.ends_with(PATH), "{path}");
    }
}
