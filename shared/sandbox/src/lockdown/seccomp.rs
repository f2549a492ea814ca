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

/// How many of them stand behind one comparison.
const DENIED_GROUP: usize = 8;

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
        deny(&mut program);
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

/// The list, in groups behind one comparison each: most calls pass it in a few steps, and the kernel,
/// which runs a new filter once for every call there is, installs it faster.
fn deny(program: &mut Vec<libc::sock_filter>) {
    let mut numbers: Vec<u32> = DENIED.iter().map(|number| call(*number)).collect();
    numbers.sort_unstable();
    // From the lowest group up, each in front of those below it: what is at least a group's first
    // number is in that group or not denied at all.
    let mut rules: Vec<libc::sock_filter> = Vec::new();
    for group in numbers.chunks(DENIED_GROUP) {
        let mut own = Vec::new();
        for number in group {
            own.extend([jump_equal(*number, 0, 1), errno(libc::EPERM)]);
        }
        own.push(jump_always(u32::try_from(rules.len()).unwrap_or(u32::MAX)));
        let skip = u8::try_from(own.len()).unwrap_or(u8::MAX);
        let first = group.first().copied().unwrap_or_default();
        own.insert(0, jump_at_least(first, 0, skip));
        own.append(&mut rules);
        rules = own;
    }
    program.append(&mut rules);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would answer, by the rules of classic BPF (`bpf(4)`), for the instructions
    /// that the filter is made of.
    fn answer_to(program: &[libc::sock_filter], data: &[u32; 16]) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let code = u32::from(code);
            let jump = |taken: bool| usize::from(if taken { jt } else { jf });
            match code & 7 {
                libc::BPF_LD => value = data[k as usize / 4],
                libc::BPF_ALU => value &= k,
                libc::BPF_RET => return k,
                libc::BPF_JMP => {
                    at += match code & 0xf0 {
                        libc::BPF_JA => k as usize,
                        libc::BPF_JEQ => jump(value == k),
                        libc::BPF_JGE => jump(value >= k),
                        libc::BPF_JSET => jump(value & k != 0),
                        other => panic!("jump {other}"),
                    }
                }
                other => panic!("instruction {other}"),
            }
        }
    }

    fn call_to(number: u32, arguments: &[u32]) -> u32 {
        let mut data = [0; 16];
        (data[0], data[1]) = (number, ARCHITECTURE);
        for (at, argument) in arguments.iter().enumerate() {
            data[4 + 2 * at] = *argument;
        }
        answer_to(&Filter::new(Sockets::Internet).program, &data)
    }

    const REFUSED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

    #[test]
    fn what_is_on_the_list_is_refused_and_nothing_else() {
        let listed: Vec<u32> = DENIED.iter().map(|number| call(*number)).collect();
        let clone3 = call(libc::SYS_clone3);
        for number in 0..1_024 {
            let expected = if listed.contains(&number) {
                REFUSED
            } else if number == clone3 {
                libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32
            } else if number == call(libc::SYS_socket) {
                // Family 0 is not one that is allowed.
                libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32
            } else {
                libc::SECCOMP_RET_ALLOW
            };
            assert_eq!(call_to(number, &[]), expected, "call {number}");
        }
    }

    #[test]
    fn arguments_and_architectures_are_looked_at() {
        let number = |number: libc::c_long| call(number);
        let new_user = libc::CLONE_NEWUSER.cast_unsigned();
        for (what, answer, expected) in [
            ("clone", call_to(number(libc::SYS_clone), &[17]), libc::SECCOMP_RET_ALLOW),
            ("clone into a namespace", call_to(number(libc::SYS_clone), &[new_user]), REFUSED),
            ("ioctl", call_to(number(libc::SYS_ioctl), &[0, 0x5401]), libc::SECCOMP_RET_ALLOW),
            ("ioctl TIOCSTI", call_to(number(libc::SYS_ioctl), &[0, 0x5412]), REFUSED),
            ("a TCP socket", call_to(number(libc::SYS_socket), &[2, 1]), libc::SECCOMP_RET_ALLOW),
            ("a raw socket", call_to(number(libc::SYS_socket), &[2, 3]), REFUSED),
        ] {
            assert_eq!(answer, expected, "{what}");
        }
        #[cfg(target_arch = "x86_64")]
        assert_eq!(call_to(0x4000_0000 | number(libc::SYS_getpid), &[]), REFUSED, "x32");
        let mut other = [0; 16];
        other[1] = ARCHITECTURE ^ 1;
        let program = Filter::new(Sockets::Local).program;
        assert_eq!(answer_to(&program, &other), libc::SECCOMP_RET_KILL_PROCESS);
    }
}
