//! The system call filter: a list of calls that tools for building and testing do not need and
//! that kernel exploits start from. Written as classic BPF, since the numbers of other
//! architectures and of x32 must be refused as well.

use std::io;

/// A filter program, ready to be installed.
pub(crate) struct Filter {
    program: Vec<libc::sock_filter>,
}

/// Which sockets may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Sockets {
    /// Local ones and those of the internet families, for a process with a network of its own.
    Internet,
    /// Local ones only.
    Local,
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

// Offsets in `struct seccomp_data`; arguments are 64 bits wide, and their low halves come first.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const fn argument_at(index: u32) -> u32 {
    16 + 8 * index
}

/// Flags of `clone` that make a namespace.
const NEW_NAMESPACES: u32 = 0x7e02_0000;

/// The low bits of a socket's type, without its flags (`SOCK_TYPE_MASK` in the kernel).
const SOCKET_TYPE: u32 = 0xf;

/// Terminal requests that inject input (CVE-2017-5226), drive the console or load a line
/// discipline.
const TERMINAL_REQUESTS: [u32; 3] = [0x5412, 0x541c, 0x5423];

/// `personality` only to ask, or for the plain one.
const PERSONALITIES: [u32; 2] = [0, 0xffff_ffff];

/// Refused whatever their arguments.
const DENIED: &[libc::c_long] = &[
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // Files by number instead of by name, watching whole mounts, quotas.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    // Other processes' insides.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // Large kernel interfaces with a history of faults.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Keys are not namespaced.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // The machine itself.
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
];

impl Filter {
    pub(crate) fn new(sockets: Sockets) -> Self {
        let mut program = vec![
            load(ARCHITECTURE_AT),
            jump_equal(ARCHITECTURE, 1, 0),
            answer(libc::SECCOMP_RET_KILL_PROCESS),
            load(NUMBER_AT),
        ];
        // x32 calls carry this bit, so a list of plain numbers would miss them all.
        if cfg!(target_arch = "x86_64") {
            program.extend([jump_at_least(0x4000_0000, 0, 1), errno(libc::EPERM)]);
        }
        for number in DENIED {
            program.extend([jump_equal(call(*number), 0, 1), errno(libc::EPERM)]);
        }
        // Its flags lie in memory that a filter cannot see; callers fall back to `clone`.
        program.extend([jump_equal(call(libc::SYS_clone3), 0, 1), errno(libc::ENOSYS)]);
        block(
            &mut program,
            libc::SYS_clone,
            &[load(argument_at(0)), jump_any_bit(NEW_NAMESPACES, 0, 1), errno(libc::EPERM)],
        );
        let mut requests = vec![load(argument_at(1))];
        for request in TERMINAL_REQUESTS {
            requests.extend([jump_equal(request, 0, 1), errno(libc::EPERM)]);
        }
        block(&mut program, libc::SYS_ioctl, &requests);
        let [ask, plain] = PERSONALITIES;
        block(
            &mut program,
            libc::SYS_personality,
            &[
                load(argument_at(0)),
                jump_equal(ask, 2, 0),
                jump_equal(plain, 1, 0),
                errno(libc::EPERM),
            ],
        );
        block(&mut program, libc::SYS_socket, &socket_rules(sockets));
        program.push(answer(libc::SECCOMP_RET_ALLOW));
        Self { program }
    }

    /// Puts the filter on this thread and all it starts; needs no_new_privs. Makes two system
    /// calls and touches no other memory, so that it may run between fork and exec.
    pub(crate) fn install(&self) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: u16::try_from(self.program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
            filter: self.program.as_ptr().cast_mut(),
        };
        // SAFETY: `program` points to as many instructions as it says, which live through the
        // calls; the kernel copies them and writes to none.
        let outcome = unsafe {
            match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
                0 => {
                    libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
                }
                failed => failed,
            }
        };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Local sockets, internet ones that are not raw, and the routing table's netlink, which programs
/// use to list network interfaces.
fn socket_rules(sockets: Sockets) -> Vec<libc::sock_filter> {
    let mut rules = vec![
        load(argument_at(0)),
        jump_equal(libc::AF_UNIX.cast_unsigned(), 0, 1),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    if sockets == Sockets::Internet {
        rules.extend([
            jump_equal(libc::AF_INET.cast_unsigned(), 2, 0),
            jump_equal(libc::AF_INET6.cast_unsigned(), 1, 0),
            jump_always(5),
            load(argument_at(1)),
            and(SOCKET_TYPE),
            jump_equal(libc::SOCK_RAW.cast_unsigned(), 0, 1),
            errno(libc::EPERM),
            answer(libc::SECCOMP_RET_ALLOW),
            jump_equal(libc::AF_NETLINK.cast_unsigned(), 0, 3),
            load(argument_at(2)),
            jump_equal(libc::NETLINK_ROUTE.cast_unsigned(), 0, 1),
            answer(libc::SECCOMP_RET_ALLOW),
        ]);
    }
    rules.push(errno(libc::EAFNOSUPPORT));
    rules
}

/// Rules for one call: skipped for others, and a call that passes them is allowed.
fn block(program: &mut Vec<libc::sock_filter>, number: libc::c_long, rules: &[libc::sock_filter]) {
    // One more instruction, the final allow, follows the rules.
    let skip = u8::try_from(rules.len() + 1).unwrap_or(u8::MAX);
    program.push(jump_equal(call(number), 0, skip));
    program.extend_from_slice(rules);
    program.push(answer(libc::SECCOMP_RET_ALLOW));
}

/// A call's number as the kernel sees it. Constants of this crate fit.
const fn call(number: libc::c_long) -> u32 {
    number as u32
}

const fn instruction(code: u32, k: u32, yes: u8, no: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: yes, jf: no, k }
}

const fn load(at: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0)
}

const fn and(mask: u32) -> libc::sock_filter {
    instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, mask, 0, 0)
}

const fn jump_equal(value: u32, yes: u8, no: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, yes, no)
}

const fn jump_at_least(value: u32, yes: u8, no: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, value, yes, no)
}

const fn jump_any_bit(mask: u32, yes: u8, no: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, mask, yes, no)
}

const fn jump_always(by: u32) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JA, by, 0, 0)
}

const fn answer(action: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, action, 0, 0)
}

const fn errno(number: i32) -> libc::sock_filter {
    answer(libc::SECCOMP_RET_ERRNO | number as u32)
}
