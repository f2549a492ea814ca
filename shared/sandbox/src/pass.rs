//! Descriptors that travel over a Unix socket (`unix(7)`, `SCM_RIGHTS`), each message one byte long.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

const MARK: u8 = b'd';

/// Descriptors of one message. The kernel takes 253.
const TOGETHER: usize = 32;

pub(crate) fn send(over: impl AsFd, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    send_all(over, &[descriptor])
}

/// Sends any number of descriptors, in order.
pub(crate) fn send_all(over: impl AsFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    for together in descriptors.chunks(TOGETHER) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TOGETHER))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(together)) {
            return Err(io::Error::other("no room for descriptors"));
        }
        let mark = [IoSlice::new(&[MARK])];
        if sendmsg(&over, &mark, &mut control, SendFlags::NOSIGNAL)? != 1 {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

/// Takes the next byte, which must bring one descriptor.
pub(crate) fn receive(over: impl AsFd) -> io::Result<OwnedFd> {
    let [descriptor] =
        <[OwnedFd; 1]>::try_from(receive_message(over)?).map_err(|_| unexpected())?;
    Ok(descriptor)
}

/// Takes as many descriptors as were sent by one [`send_all`].
pub(crate) fn receive_all(over: impl AsFd, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut all = Vec::with_capacity(count);
    while all.len() < count {
        all.extend(receive_message(&over)?);
    }
    if all.len() == count { Ok(all) } else { Err(unexpected()) }
}

/// Takes the next byte and what it brings, at least one descriptor.
pub(crate) fn receive_message(over: impl AsFd) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TOGETHER))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(&over, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    let mut came = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            came.extend(descriptors);
        }
    }
    match (message.bytes, byte) {
        (0, _) => Err(io::ErrorKind::UnexpectedEof.into()),
        (1, [MARK]) if !came.is_empty() => Ok(came),
        _ => Err(unexpected()),
    }
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not the descriptors that were expected")
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[test]
    fn a_descriptor_arrives_and_anything_else_is_refused() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let (kept, passed) = UnixStream::pair().unwrap();
        send(&here, passed.as_fd()).unwrap();
        drop(passed);
        let mut arrived = UnixStream::from(receive(&there).unwrap());
        (&kept).write_all(b"x").unwrap();
        arrived.read_exact(&mut [0]).unwrap();
        here.write_all(b"d").unwrap();
        assert_eq!(receive(&there).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(here);
        assert_eq!(receive(&there).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn many_arrive_in_order_and_not_more_than_expected() {
        let (here, there) = UnixStream::pair().unwrap();
        let (one, two) = UnixStream::pair().unwrap();
        let sent: Vec<BorrowedFd<'_>> =
            (0..100).map(|n| if n % 3 == 0 { one.as_fd() } else { two.as_fd() }).collect();
        send_all(&here, &sent).unwrap();
        let arrived = receive_all(&there, 100).unwrap();
        let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino;
        for (sent, arrived) in sent.iter().zip(&arrived) {
            assert_eq!(inode(*sent), inode(arrived.as_fd()));
        }
        send_all(&here, &sent[..2]).unwrap();
        assert!(receive(&there).is_err());
        assert!(receive_all(&there, 0).unwrap().is_empty());
    }
}
