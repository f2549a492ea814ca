//! Packages that environments ask for: which managers there are, and how a package is spelt.
//!
//! A spelling becomes an argument of a package manager. It is checked here so that it can be nothing
//! else: no option, no path, no address, and nothing that a shell would read.

use crate::agent::Packages;

/// Packages of one environment, of all managers together. Each is an argument of one command.
pub const PACKAGES_MAX: usize = 100;

/// One spelling. The longest names of the registries have 214 (npm).
const SPELLING_BYTES_MAX: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manager {
    Apt,
    Cargo,
    Gem,
    Go,
    Npm,
    Pip,
}

impl Manager {
    /// In the order in which they run: the system's packages first, as the others may need them.
    pub const ALL: [Self; 6] = [Self::Apt, Self::Pip, Self::Npm, Self::Gem, Self::Go, Self::Cargo];

    /// The name in configurations and commands.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Apt => "apt",
            Self::Cargo => "cargo",
            Self::Gem => "gem",
            Self::Go => "go",
            Self::Npm => "npm",
            Self::Pip => "pip",
        }
    }
}

impl Packages {
    /// What `manager` is to install.
    pub fn of(&self, manager: Manager) -> &[String] {
        match manager {
            Manager::Apt => &self.apt,
            Manager::Cargo => &self.cargo,
            Manager::Gem => &self.gem,
            Manager::Go => &self.go,
            Manager::Npm => &self.npm,
            Manager::Pip => &self.pip,
        }
    }

    /// As [`Self::of`], to be filled.
    pub fn of_mut(&mut self, manager: Manager) -> &mut Vec<String> {
        match manager {
            Manager::Apt => &mut self.apt,
            Manager::Cargo => &mut self.cargo,
            Manager::Gem => &mut self.gem,
            Manager::Go => &mut self.go,
            Manager::Npm => &mut self.npm,
            Manager::Pip => &mut self.pip,
        }
    }

    /// Packages of all managers.
    pub fn count(&self) -> usize {
        Manager::ALL.iter().map(|manager| self.of(*manager).len()).sum()
    }
}

/// Whether `package` is how `manager` spells a package, a version included.
///
/// # Errors
/// One sentence without its subject, for people.
pub fn check(manager: Manager, package: &str) -> Result<(), &'static str> {
    if package.len() > SPELLING_BYTES_MAX {
        return Err("is too long");
    }
    let (good, form) = match manager {
        Manager::Apt => (apt(package), "must be NAME or NAME=VERSION"),
        Manager::Cargo => (at(package, plain, version), "must be NAME or NAME@VERSION"),
        Manager::Gem => (parts(package, ':', plain, version), "must be NAME or NAME:VERSION"),
        Manager::Go => (at(package, module, tag), "must be MODULE or MODULE@VERSION"),
        Manager::Npm => (npm(package), "must be NAME, @SCOPE/NAME, or one of them with @VERSION"),
        Manager::Pip => {
            (pip(package), "must be NAME or NAME[EXTRA], with versions such as ==1.2 or >=1.2,<2")
        }
    };
    if good { Ok(()) } else { Err(form) }
}

/// `NAME`, or `NAME`, `mark` and a version.
fn parts(
    package: &str,
    mark: char,
    name: impl Fn(&str) -> bool,
    version: impl Fn(&str) -> bool,
) -> bool {
    match package.split_once(mark) {
        None => name(package),
        Some((before, after)) => name(before) && version(after),
    }
}

fn at(package: &str, name: impl Fn(&str) -> bool, version: impl Fn(&str) -> bool) -> bool {
    parts(package, '@', name, version)
}

/// Begins with a letter or digit and goes on with these and `extra`.
fn word(text: &str, extra: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphanumeric())
        && chars.all(|c| c.is_ascii_alphanumeric() || extra.contains(c))
}

fn plain(name: &str) -> bool {
    word(name, "._-")
}

fn version(version: &str) -> bool {
    word(version, ".+-_")
}

/// A version, or the name of one.
fn tag(tag: &str) -> bool {
    word(tag, ".+-_/") && !tag.contains("..")
}

fn apt(package: &str) -> bool {
    let name = |name: &str| {
        let (name, architecture) = name.split_once(':').unwrap_or((name, "any"));
        word(name, "+.-") && word(architecture, "")
    };
    parts(package, '=', name, |version| word(version, ".+-~:"))
}

/// A host and a path.
fn module(path: &str) -> bool {
    let mut names = path.split('/');
    names.next().is_some_and(|host| word(host, ".-") && host.contains('.'))
        && names.all(|name| word(name, "._~-") && !name.contains(".."))
}

fn npm(package: &str) -> bool {
    let range = |range: &str| tag_or_range(range);
    match package.strip_prefix('@') {
        None => at(package, plain, range),
        Some(scoped) => match scoped.split_once('/') {
            None => false,
            Some((scope, rest)) => plain(scope) && at(rest, plain, range),
        },
    }
}

fn tag_or_range(text: &str) -> bool {
    version(text.strip_prefix(['^', '~']).unwrap_or(text))
}

fn pip(package: &str) -> bool {
    let end = package.find(['[', '=', '<', '>', '!', '~']).unwrap_or(package.len());
    let (name, rest) = package.split_at(end);
    let rest = match rest.strip_prefix('[') {
        None => rest,
        Some(extras) => match extras.split_once(']') {
            Some((extras, rest)) if extras.split(',').all(plain) => rest,
            Some(_) | None => return false,
        },
    };
    plain(name) && (rest.is_empty() || rest.split(',').all(clause))
}

/// One comparison of versions (PEP 440).
fn clause(clause: &str) -> bool {
    let marks = ["==", "!=", "~=", "<=", ">=", "<", ">"];
    let found = marks.iter().find_map(|mark| clause.strip_prefix(mark));
    found.is_some_and(|version| word(version, ".+*!-_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_spelt_as_their_managers_take_them() {
        for (manager, good) in [
            (
                Manager::Apt,
                &["curl", "g++", "libc6:amd64", "curl=7.88.1-10+deb12u5", "a=1:2.0~rc1"][..],
            ),
            (Manager::Cargo, &["ripgrep", "ripgrep@14.1.0", "a_b-c@1.0.0-rc.1+x"]),
            (Manager::Gem, &["rails", "rails:7.1.3", "a_b-c.d"]),
            (Manager::Go, &["golang.org/x/tools/gopls", "github.com/a/b@v1.2.3", "x.y/z@latest"]),
            (
                Manager::Npm,
                &["left-pad", "left-pad@1.3.0", "@types/node", "@types/node@^20.1", "x@next"],
            ),
            (
                Manager::Pip,
                &["numpy", "numpy==2.1.*", "a.b_c-d>=1.2,<2", "httpx[http2,cli]~=0.27", "x!=1"],
            ),
        ] {
            for package in good {
                assert_eq!(check(manager, package), Ok(()), "{manager:?} {package}");
            }
        }
    }

    #[test]
    fn nothing_else_passes() {
        let long = "a".repeat(257);
        for bad in [
            "",
            " ",
            "-",
            "-r",
            "--index-url=http://x",
            "-e.",
            "a b",
            "a\tb",
            "a\n",
            "a\0",
            "a;b",
            "a&b",
            "a|b",
            "$(id)",
            "`id`",
            "a'b",
            "a\"b",
            "a\\b",
            "../x",
            "./x",
            "/etc/passwd",
            "a/../b",
            "http://x.y/z",
            "git+https://x.y/z",
            "a@",
            "a=",
            "@",
            "@a",
            "@/a",
            "@a/",
            "ünï",
            "a@-x",
            "a==-x",
            "a #b",
            "a,b",
            "a[",
            "a[]",
            "a[b",
            "a>",
            "*",
            "~",
            "a@npm:b",
            "a@../b",
            &long,
        ] {
            for manager in Manager::ALL {
                assert!(check(manager, bad).is_err(), "{manager:?} {bad:?}");
            }
        }
    }

    #[test]
    fn each_manager_has_its_own_list() {
        let mut packages = Packages::default();
        for manager in Manager::ALL {
            packages.of_mut(manager).push(manager.as_str().to_owned());
        }
        assert_eq!(packages.count(), 6);
        for manager in Manager::ALL {
            assert_eq!(packages.of(manager), [manager.as_str()]);
        }
    }
}
