//! What a process gives up for good before it runs foreign code: capabilities, new privileges,
//! being looked into, resources, system calls, file access. It must not know what runs afterwards.

pub(crate) mod landlock;
pub(crate) mod seccomp;

use std::io;

use rustix::{
    process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit},
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    },
};

use crate::spec::Limits;

/// Open files per process: what servers and build tools ask for, and no more.
const FILES_MAX: u64 = 4_096;

/// Memory that cannot be swapped out, per process; the kernel's own default.
const LOCKED_BYTES_MAX: u64 = 8 << 20;

/// Bytes in message queues of one user; the kernel's own default.
const QUEUE_BYTES_MAX: u64 = 819_200;

/// Empties every capability set and the bounding set, so that no program can gain one by exec.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    clear_ambient_capability_set()?;
    for bit in 0..64 {
        // The kernel has fewer than 64 and answers EINVAL from the first unknown one on.
        let Some(capability) = CapabilitySet::from_bits(1 << bit) else { continue };
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) => break,
            Err(why) => return Err(why.into()),
        }
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

/// No program started from here gains a privilege, and no other process looks into this one: its
/// memory, descriptors and environment are closed even to processes of the same user.
pub(crate) fn close_privileges() -> io::Result<()> {
    set_no_new_privs(true)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// Limits per process; `memory_each` when no control group bounds memory.
pub(crate) fn limit_resources(limits: &Limits, memory_each: bool) -> io::Result<()> {
    let mut wanted = vec![
        (Resource::Core, 0),
        (Resource::Nproc, limits.pids_max),
        (Resource::Nofile, FILES_MAX),
        (Resource::Fsize, limits.file_bytes_max),
        (Resource::Memlock, LOCKED_BYTES_MAX),
        (Resource::Msgqueue, QUEUE_BYTES_MAX),
        (Resource::Rtprio, 0),
        (Resource::Nice, 0),
    ];
    if memory_each {
        // Not the address space: runtimes reserve terabytes of it and use little.
        wanted.push((Resource::Data, limits.memory_bytes));
    }
    for (resource, value) in wanted {
        // A limit that is already lower stays, since raising it would need a privilege.
        let ceiling = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let value = Some(value.min(ceiling));
        setrlimit(resource, Rlimit { current: value, maximum: value })?;
    }
    Ok(())
}
