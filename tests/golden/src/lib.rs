//! Golden tests: what a session looks like, from the real runtime over the in-memory ports, with a
//! model and a user that follow a script.

pub mod cases;
pub mod play;
pub mod show;
