//! Copying a folder, file by file, links as links.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use anyhow::Context;

use super::{
    root::Root,
    tree::{Leaf, Tree, read_tree},
};

/// What was copied, and what was not.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) files: usize,
    pub(crate) left_out: Vec<(PathBuf, &'static str)>,
}

/// Copies the folder `from` into the folder `to`, which is made if it is missing. `.git` folders,
/// `except`, and what is neither file, link nor folder are left out.
///
/// # Errors
/// When something cannot be read or written, or `from` is beyond a limit.
pub(crate) fn copy(from: &Root, to: &Path, except: Option<&Path>) -> anyhow::Result<Copied> {
    let tree = read_tree(from, except)?;
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for folder in &tree.empty {
        fs::create_dir_all(to.join(folder))?;
    }
    for (path, leaf) in &tree.leaves {
        copy_leaf(from, to, path, leaf)
            .with_context(|| format!("cannot copy {}", from.path.join(path).display()))?;
    }
    let Tree { leaves, left_out, .. } = tree;
    Ok(Copied { files: leaves.len(), left_out })
}

fn copy_leaf(from: &Root, to: &Path, path: &Path, leaf: &Leaf) -> io::Result<()> {
    let target = to.join(path);
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder)?;
    }
    match leaf {
        Leaf::File { executable, .. } => {
            let mut source = from.file(path)?;
            let mut copy = File::create_new(&target)?;
            io::copy(&mut source, &mut copy)?;
            let mode = if *executable { 0o755 } else { 0o644 };
            copy.set_permissions(Permissions::from_mode(mode))
        }
        Leaf::Link { target: points_to } => symlink(points_to, target),
    }
}
