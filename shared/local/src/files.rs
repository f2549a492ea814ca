//! Names and modes of files: tenants and sessions as folder names, folders only we may enter.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::Path,
};

/// Makes `dir` and what leads to it, for this user alone; what exists stays as it is.
pub(crate) fn make_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Takes the other users' rights away.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode & 0o7700))
}

/// Makes a change of `dir`'s entries durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// `name` as one component of a path, whatever it holds: letters, digits, `_` and `-` stay, every
/// other byte becomes `%` and two hexadecimal digits. Different names stay different.
pub(crate) fn component(name: &str) -> String {
    if name.is_empty() {
        return "%".to_owned();
    }
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_folder() {
        for (name, want) in [
            ("default", "default"),
            ("..", "%2e%2e"),
            ("a/b", "a%2fb"),
            ("", "%"),
            ("%", "%25"),
            ("é", "%c3%a9"),
        ] {
            assert_eq!(component(name), want);
        }
    }
}
