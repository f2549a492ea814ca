//! The difference of two trees.

use std::path::PathBuf;

use super::tree::{Leaf, Tree};

/// One path that is not as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) path: PathBuf,
    pub(super) before: Option<Leaf>,
    pub(super) after: Option<Leaf>,
}

/// What changed from `before` to `after`, in order of path.
pub(crate) fn changes(before: &Tree, after: &Tree) -> Vec<Change> {
    let mut changes: Vec<Change> = before
        .leaves
        .iter()
        .filter(|(path, leaf)| after.leaves.get(*path) != Some(*leaf))
        // What could not be read back has not been deleted.
        .filter(|(path, _)| !after.left_out.iter().any(|(out, _)| path.starts_with(out)))
        .map(|(path, leaf)| Change {
            path: path.clone(),
            before: Some(leaf.clone()),
            after: after.leaves.get(path).cloned(),
        })
        .collect();
    let new = after.leaves.iter().filter(|(path, _)| !before.leaves.contains_key(*path));
    changes.extend(new.map(|(path, leaf)| Change {
        path: path.clone(),
        before: None,
        after: Some(leaf.clone()),
    }));
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    changes
}
