//! Scopes of IPv6 link-local addresses: the number of the interface on which such an address is valid.
//!
//! The number means something on its own host only, so announcements and tables hold addresses without it. A node
//! reaches link-local addresses of other hosts over the interface that has its own link-local address.

use std::net::{IpAddr, SocketAddr};

/// Returns the number of the interface that has this link-local address of this host; 0 for any other address.
pub fn scope_of(own: IpAddr) -> u32 {
    match is_link_local(own) {
        true => interface_with(own, &std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default()),
        false => 0,
    }
}

/// Returns the address with a scope if it is link-local, has none, and `scope` is one.
pub fn scoped(mut address: SocketAddr, scope: u32) -> SocketAddr {
    if let SocketAddr::V6(of_v6) = &mut address
        && scope != 0
        && is_link_local((*of_v6.ip()).into())
    {
        of_v6.set_scope_id(scope);
    }
    address
}

/// Returns the address of a socket of this host, with the scope of its interface unless it has one.
pub(super) fn own_scoped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(of_v6) if of_v6.scope_id() != 0 => address,
        _ => scoped(address, scope_of(address.ip())),
    }
}

/// Returns the address without a scope.
pub fn unscoped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Finds the interface in the kernel's list: lines with address, number of the interface, ..., name.
fn interface_with(own: IpAddr, list: &str) -> u32 {
    let IpAddr::V6(own) = own else { return 0 };
    let own = format!("{:032x}", own.to_bits());
    let mut lines = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = lines.find(|fields| fields.first() == Some(&own.as_str()));
    found.and_then(|fields| u32::from_str_radix(fields.get(1)?, 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_addresses_get_the_scope_of_their_interface() {
        let list = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fe800000000000000a0027fffe4e66a1 1c 40 20 80     eth0\n";
        let own: IpAddr = "fe80::a00:27ff:fe4e:66a1".parse().unwrap();
        assert_eq!((interface_with(own, list), interface_with("fe80::1".parse().unwrap(), list)), (28, 0));
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(scoped(at("[fe80::1]:7"), 28), at("[fe80::1%28]:7"));
        assert_eq!(scoped(at("[fe80::1%2]:7"), 28), at("[fe80::1%28]:7"), "a scope of another host");
        for other in ["[fd00::1]:7", "10.0.0.1:7"] {
            assert_eq!(scoped(at(other), 28), at(other));
        }
        assert_eq!(unscoped(at("[fe80::1%2]:7")), at("[fe80::1]:7"));
    }
}
