//! Addresses as users write them: with a scope by name, and IPv4 addresses in IPv6 form.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;

use halite_providers::roce::{scope_of, scoped};
use rustix::net::{AddressFamily, SocketType, netdevice};

/// Parses `IP:PORT`. An IPv6 address may have a scope, the name or number of an interface: `[fe80::1%eth0]:7000`.
pub fn socket_address(text: &str) -> Result<SocketAddr, String> {
    if let Some(address) = parse_scoped(text)? {
        return Ok(address);
    }
    let address: SocketAddr =
        text.parse().map_err(|_| "expected IP:PORT, or [IP]:PORT for IPv6".to_owned())?;
    Ok(canonical(address))
}

/// Parses an IP address.
pub fn ip_address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| "expected an IP address".to_owned())?;
    Ok(address.to_canonical())
}

/// Returns the addresses of `HOST:PORT`.
pub fn resolve(host: &str) -> io::Result<Vec<SocketAddr>> {
    match parse_scoped(host) {
        Ok(Some(address)) => Ok(vec![address]),
        Ok(None) => Ok(host.to_socket_addrs()?.map(canonical).collect()),
        Err(reason) => Err(io::Error::new(io::ErrorKind::InvalidInput, reason)),
    }
}

/// Formats an address at which nodes are dialled. A link-local one gets the interface of `own`, an address of this host,
/// because nodes exchange addresses without scopes.
pub fn format_address(address: SocketAddr, own: Option<IpAddr>) -> String {
    let address = scoped(address, own.map_or(0, scope_of));
    match address {
        SocketAddr::V4(_) => address.to_string(),
        SocketAddr::V6(_) => format!("[{}]:{}", format_ip(address), address.port()),
    }
}

/// Formats the IP of an address, with the name of the interface that is its scope.
pub fn format_ip(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => {
            let scope = v6.scope_id();
            format!("{}%{}", v6.ip(), interface_name(scope).unwrap_or_else(|| scope.to_string()))
        }
        _ => address.ip().to_string(),
    }
}

/// Converts an IPv4 address in IPv6 form (`::ffff:10.0.0.1`), which IPv4 hosts could not dial, to IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Parses an address with a scope; `None` if it has none.
fn parse_scoped(text: &str) -> Result<Option<SocketAddr>, String> {
    let Some((ip, rest)) = text.strip_prefix('[').and_then(|text| text.split_once('%')) else {
        return Ok(None);
    };
    let Some((scope, port)) = rest.split_once("]:") else {
        return Err("expected [IP%INTERFACE]:PORT".to_owned());
    };
    let number = match scope.parse() {
        Ok(number) => number,
        Err(_) => interface_index(scope).ok_or_else(|| format!("this host has no interface {scope:?}"))?,
    };
    let address = format!("[{ip}%{number}]:{port}").parse();
    address.map(Some).map_err(|_| format!("[{ip}]:{port} is not an IPv6 address with a port"))
}

/// Returns the number of the interface with this name.
fn interface_index(name: &str) -> Option<u32> {
    netdevice::name_to_index(any_socket()?, name).ok()
}

/// Returns the name of the interface with this number.
fn interface_name(interface: u32) -> Option<String> {
    netdevice::index_to_name(any_socket()?, interface).ok()
}

/// Opens a socket, through which the kernel answers questions about interfaces.
fn any_socket() -> Option<OwnedFd> {
    rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_and_mapped_addresses_are_parsed() {
        let parse = |text: &str| socket_address(text).map(|address| address.to_string());
        // The loopback interface is the first of every network namespace.
        for text in ["[fe80::1%lo]:7000", "[fe80::1%1]:7000"] {
            assert_eq!(parse(text).as_deref(), Ok("[fe80::1%1]:7000"));
            assert_eq!(resolve(text).unwrap()[0].to_string(), "[fe80::1%1]:7000");
        }
        let format_at = |text: &str| format_address(text.parse().unwrap(), Some("::1".parse().unwrap()));
        for text in ["[fe80::1%lo]:7000", "[fd00::1]:7000", "10.0.0.1:7000"] {
            assert_eq!(format_at(&text.replace("lo", "1")), text);
        }
        assert_eq!(format_at("[fe80::1]:7000"), "[fe80::1]:7000", "::1 is not link-local");
        assert_eq!(parse("[::ffff:10.0.0.1]:7000").as_deref(), Ok("10.0.0.1:7000"));
        assert_eq!(parse("[fe80::1%none]:7000").unwrap_err(), "this host has no interface \"none\"");
        for wrong in
            ["[fe80::1%lo]", "[fe80::1%lo:7000", "fe80::1:7000", "[10.0.0.1%lo]:7000", "[fe80::1%]:1"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
