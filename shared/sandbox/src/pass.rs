//! Descriptors that travel over a Unix socket (`unix(7)`, `SCM_RIGHTS`), one a message of one byte.

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

pub(crate) fn send(over: impl AsFd, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    match sendmsg(over, &[IoSlice::new(&[MARK])], &mut control, SendFlags::NOSIGNAL)? {
        1 => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Takes the next byte, which must bring a descriptor.
pub(crate) fn receive(over: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(over, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    let mut came = control.drain().filter_map(|message| {
        let RecvAncillaryMessage::ScmRights(mut descriptors) = message else { return None };
        descriptors.next()
    });
    match (message.bytes, byte, came.next()) {
        (1, [MARK], Some(descriptor)) => Ok(descriptor),
        (0, ..) => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no descriptor came")),
    }
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
}
