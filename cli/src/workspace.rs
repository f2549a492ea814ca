//! What a session is lent and what comes back: a copy of the user's folder goes in, the difference
//! comes out, and the user decides whether it is applied.
//!
//! The copy that comes back was in an agent's hands, so nothing in it is trusted: no symbolic link is
//! followed on any side, nothing is written through one, and nothing under `.git` is ever brought
//! back. It must not know sessions, models or terminals.

mod apply;
mod change;
mod copy;
mod patch;
mod root;
mod save;
mod tree;

pub(crate) use apply::{Conflict, apply, conflicts};
pub(crate) use change::{Change, changes};
pub(crate) use copy::copy;
pub(crate) use patch::write_patch;
pub(crate) use root::Root;
pub(crate) use save::Saving;
pub(crate) use tree::{Leaf, leaf, read_tree};

#[cfg(test)]
mod tests;
