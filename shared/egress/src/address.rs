//! Which addresses are the public internet. Everything that is not plainly so is closed.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use crate::error::EgressError;

/// Whether `address` is one that anybody on the internet can reach.
///
/// Closed are the special-purpose ranges of IANA's registries (RFC 6890 and its successors), multicast,
/// cloud metadata services that stand in public ranges, and IPv6 forms that hold a closed IPv4 address.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

const CLOSED_V4: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8), // "this network"; Linux connects 0.0.0.0 to itself
    (Ipv4Addr::new(10, 0, 0, 0), 8), // private
    (Ipv4Addr::new(100, 64, 0, 0), 10), // shared behind carrier NAT; metadata at Alibaba
    (Ipv4Addr::new(127, 0, 0, 0), 8), // loopback
    (Ipv4Addr::new(168, 63, 129, 16), 32), // Azure's host services
    (Ipv4Addr::new(169, 254, 0, 0), 16), // link-local; metadata at AWS, Google, Azure
    (Ipv4Addr::new(172, 16, 0, 0), 12), // private
    (Ipv4Addr::new(192, 0, 0, 0), 24), // protocol assignments; metadata at Oracle
    (Ipv4Addr::new(192, 0, 2, 0), 24), // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24), // 6to4 relays
    (Ipv4Addr::new(192, 168, 0, 0), 16), // private
    (Ipv4Addr::new(198, 18, 0, 0), 15), // benchmarking
    (Ipv4Addr::new(198, 51, 100, 0), 24), // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24), // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 3), // multicast, reserved, broadcast
];

fn is_public_v4(address: Ipv4Addr) -> bool {
    !CLOSED_V4.iter().any(|(start, bits)| {
        Net { start: IpAddr::V4(*start), bits: *bits, port: None }.holds(IpAddr::V4(address))
    })
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, third, ..] = address.segments();
    // Mapped to IPv4, and the well-known prefix of NAT64: as public as what they stand for.
    let octets = address.octets();
    let [.., a, b, c, d] = octets;
    let mapped = octets[..10] == [0; 10] && octets[10..12] == [0xff, 0xff];
    let nat64 = octets[..12] == [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];
    if mapped || nat64 {
        return is_public_v4(Ipv4Addr::new(a, b, c, d));
    }
    // Only 2000::/3 is handed out. This closes loopback, unspecified, IPv4-compatible, local NAT64
    // (64:ff9b:1::/48), unique local (metadata at AWS), link-local and multicast addresses.
    let unicast = first & 0xe000 == 0x2000;
    // 2001::/23: Teredo, benchmarking, ORCHID; 2001:db8::/32 and 3fff::/20: documentation;
    // 2002::/16: 6to4, which holds an IPv4 address and is no longer routed (RFC 7526).
    let special = (first == 0x2001 && (second < 0x0200 || second == 0x0db8))
        || first == 0x2002
        || (first == 0x3fff && second < 0x1000);
    // 2620:4f:8000::/48: direct delegation of AS112, whose names are private ones.
    let as112 = first == 0x2620 && second == 0x004f && third == 0x8000;
    unicast && !special && !as112
}

/// Addresses that an operator opens although they are not public: their own registry, or a test's
/// server. Written `10.1.0.0/16`, `10.1.2.3`, `10.1.2.3:5000` or `[fd00::1]:5000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Net {
    start: IpAddr,
    bits: u8,
    /// `None` for every port.
    port: Option<u16>,
}

impl Net {
    /// Whether `address` is in it, at any port.
    fn holds(&self, address: IpAddr) -> bool {
        match (self.start, address) {
            (IpAddr::V4(start), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                start.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(start), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                start.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    pub fn contains(&self, address: SocketAddr) -> bool {
        self.holds(address.ip()) && self.port.is_none_or(|port| port == address.port())
    }
}

impl From<SocketAddr> for Net {
    fn from(address: SocketAddr) -> Self {
        Self { port: Some(address.port()), ..Self::from(address.ip()) }
    }
}

impl From<IpAddr> for Net {
    fn from(start: IpAddr) -> Self {
        Self { start, bits: if start.is_ipv4() { 32 } else { 128 }, port: None }
    }
}

impl FromStr for Net {
    type Err = EgressError;

    fn from_str(text: &str) -> Result<Self, EgressError> {
        let wrong = || EgressError::Net { text: text.to_owned() };
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        let (start, bits) = match text.split_once('/') {
            None => (text, None),
            Some((start, bits)) => (start, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
        };
        let whole = Self::from(start.parse::<IpAddr>().map_err(|_| wrong())?);
        let bits = bits.unwrap_or(whole.bits);
        if bits > whole.bits { Err(wrong()) } else { Ok(Self { bits, ..whole }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_public_internet_is_public() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.0.1",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.9",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::808:808",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b::7f00:1",
            "64:ff9b:1::808:808",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:10::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:808:808::",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2620:4f:8000::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.167.0.1",
            "198.17.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:4860:4860::8888",
            "2001:200::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn nets_are_ranges_addresses_or_sockets() {
        let holds = |net: &str, address: &str| {
            net.parse::<Net>().unwrap().contains(address.parse().unwrap())
        };
        assert!(holds("10.0.0.0/8", "10.9.8.7:1") && !holds("10.0.0.0/8", "11.0.0.1:1"));
        assert!(holds("10.1.2.3", "10.1.2.3:9") && !holds("10.1.2.3", "10.1.2.4:9"));
        assert!(holds("10.1.2.3:80", "10.1.2.3:80") && !holds("10.1.2.3:80", "10.1.2.3:81"));
        assert!(holds("fd00::/8", "[fd12::1]:1") && !holds("fd00::/8", "[fe80::1]:1"));
        assert!(holds("0.0.0.0/0", "127.0.0.1:1") && !holds("0.0.0.0/0", "[::1]:1"));
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "a.com", "10.0.0.1/x", "::/129"] {
            assert!(wrong.parse::<Net>().is_err(), "{wrong}");
        }
    }
}
