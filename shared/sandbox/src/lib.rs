//! The hands: provisions, runs and destroys one sandbox, and holds the toolset that runs in it. It
//! must not know credentials, sessions, models or the control plane.
//!
//! A [`Sandbox`] is asked of the helper executable `tailstep-hands`, which forks PID 1 of new
//! namespaces, and that runs the [`toolset`] there; calls and replies travel over one socket. Where the
//! machine itself is the wall, [`vm`] runs the same toolset in the calling process.

#[cfg(not(target_os = "linux"))]
compile_error!("tailstep-sandbox is made of Linux namespaces and builds on Linux only");

mod call;
pub mod collect;
mod error;
pub mod hands;
mod helper;
pub mod image;
mod line;
mod lockdown;
mod pass;
pub mod program;
mod remove;
mod sandbox;
mod spec;
pub mod toolset;
pub mod vm;
mod wire;
pub mod workspace;

pub use crate::{
    call::{Call, Reply},
    error::{Retry, SandboxError},
    lockdown::seccomp::Sockets,
    remove::remove_tree,
    sandbox::{Sandbox, check_host},
    spec::{Access, Layers, Limits, Mount, Network, PROXY, Root, Spec, Strictness, WORKSPACE},
};
