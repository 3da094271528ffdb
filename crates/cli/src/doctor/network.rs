//! Findings about sockets, ports and the routes to other hosts.

use std::net::{IpAddr, SocketAddr};

use halite_providers::roce::SocketProbe;

use super::facts::{HostToJoin, NetworkFacts, PortFacts, PortRefusal};
use super::{Finding, Severity};
use crate::addresses::format_ip;
use crate::bytes::ByteCount;

/// Maximum payload of a packet, in bytes.
const PAYLOAD_BYTES_MAX: u32 = 4096;

pub fn judge(facts: &NetworkFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Small buffers only matter to nodes that send packets; otherwise the finding is a note.
    let worst = if facts.uses_packets { Severity::Warning } else { Severity::Note };
    for (address, socket) in &facts.sockets {
        match socket {
            Ok(socket) => findings.extend([segments(socket), trains(socket), buffers(socket, worst)]),
            Err(reason) => findings.push(no_socket(*address, reason, facts.uses_packets)),
        }
    }
    findings.push(hosts(facts));
    findings.extend(facts.ports.iter().map(|one| port(one, facts.runs_here)));
    for host in &facts.hosts {
        findings.extend(reachable(host));
        findings.extend(payload(host));
    }
    findings
}

fn no_socket(address: IpAddr, reason: &str, uses_packets: bool) -> Finding {
    Finding::new(
        "address",
        if uses_packets { Severity::Error } else { Severity::Note },
        format!("cannot receive packets at {address}: {reason}"),
        "name an address of this host with --listen or --address",
        "ip address",
    )
}

fn hosts(facts: &NetworkFacts) -> Finding {
    match &facts.contradiction {
        Some(contradiction) => Finding::new(
            "hosts",
            Severity::Error,
            contradiction,
            "correct the settings for other hosts, in the file, the variables or the flags",
            "halite config",
        ),
        None => Finding::ok("hosts", "the settings for other hosts are consistent", "halite config"),
    }
}

fn segments(socket: &SocketProbe) -> Finding {
    let verify = "strace -f halite doctor 2>&1 | grep UDP_SEGMENT";
    match socket.train_packets {
        0..=1 => Finding::new(
            "udp_segment",
            Severity::Note,
            "the kernel sends packets one by one (no UDP_SEGMENT): long accesses over roce cost about twice the processor time",
            "use a kernel or container that supports it",
            verify,
        ),
        packets => Finding::ok(
            "udp_segment",
            format!("the kernel sends up to {packets} packets per system call"),
            verify,
        ),
    }
}

fn trains(socket: &SocketProbe) -> Finding {
    let verify = "strace -f halite doctor 2>&1 | grep UDP_GRO";
    match socket.receives_trains {
        true => Finding::ok("udp_gro", "the kernel delivers several packets per system call", verify),
        false => Finding::new(
            "udp_gro",
            Severity::Note,
            "the kernel delivers packets one by one (no UDP_GRO): long accesses over roce cost more processor time",
            "use a kernel or container that supports it",
            verify,
        ),
    }
}

fn buffers(socket: &SocketProbe, severity: Severity) -> Finding {
    let (has, wanted) =
        (ByteCount(socket.receive_bytes as u64), ByteCount(socket.receive_bytes_wanted as u64));
    let verify = "sysctl net.core.rmem_max";
    if socket.receive_bytes >= socket.receive_bytes_wanted {
        return Finding::ok("socket_buffers", format!("receive buffers hold {has}"), verify);
    }
    Finding::new(
        "socket_buffers",
        severity,
        format!(
            "receive buffers hold {has}; {wanted} are recommended: peers may send less at a time, and bursts get lost"
        ),
        format!("sysctl -w net.core.rmem_max={}, and the same in /etc/sysctl.d", socket.receive_bytes_wanted),
        verify,
    )
}

fn port(facts: &PortFacts, runs_here: bool) -> Finding {
    let PortFacts { address, flag, refused } = facts;
    let verify = format!("ss -ltnp 'sport = :{}'", address.port());
    let Some(refused) = refused else {
        return Finding::ok("ports", format!("{flag} {address} is free"), verify);
    };
    let (severity, found, remedy) = match refused {
        PortRefusal::InUse if runs_here => (
            Severity::Note,
            format!("{address} is in use, apparently by the node that runs here"),
            format!("choose another port for {flag} if it is not that node"),
        ),
        PortRefusal::InUse => (
            Severity::Error,
            format!("{address} is already in use"),
            format!("end that process, or choose another port for {flag}"),
        ),
        PortRefusal::Foreign => (
            Severity::Error,
            format!("{address} is not an address of this host"),
            format!("name one of its addresses with {flag}"),
        ),
        PortRefusal::Other(reason) => (
            Severity::Error,
            format!("cannot listen at {address}: {reason}"),
            format!("choose another address for {flag}"),
        ),
    };
    Finding::new("ports", severity, found, remedy, verify)
}

/// What the doctor does not test of a host without a secret. Only a member of the cluster gets answers to packets.
const UDP_TEST: &str = "UDP, which carries the packets, is not tested: give --secret-file";

fn reachable(host: &HostToJoin) -> Option<Finding> {
    let name = &host.name;
    let failed = |found: String, remedy: &str, verify: String| {
        Some(Finding::new("join", Severity::Error, found, remedy, verify))
    };
    match (&host.addresses, &host.refused) {
        (Err(reason), _) => {
            let host = name.rsplit_once(':').map_or(name.as_str(), |(host, _)| host);
            let verify = format!("getent hosts {host}");
            failed(format!("cannot resolve {name}: {reason}"), "correct the name, or write HOST:PORT", verify)
        }
        (Ok(addresses), Some(reason)) => failed(
            format!("no answer from {name} ({reason})"),
            "check that a node listens there, and that no firewall drops TCP or UDP between the two hosts",
            verify_port(addresses),
        ),
        (Ok(addresses), None) => match &host.joined {
            None => {
                let found = format!("{name} answers over TCP; {UDP_TEST}");
                Some(Finding::ok("join", found, verify_port(addresses)))
            }
            Some(Ok(bytes)) => {
                let size =
                    bytes.map(|bytes| format!(", with up to {bytes} bytes to {name}")).unwrap_or_default();
                let found = format!(
                    "a temporary node has joined through {name}: packets (UDP) pass in both directions{size}"
                );
                Some(Finding::ok("join", found, verify_port(addresses)))
            }
            Some(Err(reason)) => failed(
                format!("{name} answers over TCP, but a temporary node did not join through it: {reason}"),
                "check the secret, and that firewalls let TCP and UDP pass in both directions",
                verify_port(addresses),
            ),
        },
    }
}

fn verify_port(addresses: &[SocketAddr]) -> String {
    addresses.first().map_or_else(String::new, |at| format!("nc -vz {} {}", format_ip(*at), at.port()))
}

/// Creates the finding about the maximum payload of packets to a host, which are never fragmented.
fn payload(host: &HostToJoin) -> Option<Finding> {
    let ip = format_ip(*host.addresses.as_ref().ok()?.first()?);
    let verify = format!("tracepath -n {ip}");
    let sent = host.payload_bytes?;
    if let Some(Ok(Some(passed))) = host.joined
        && passed < sent
    {
        return Some(Finding::new(
            "mtu",
            Severity::Warning,
            format!(
                "packets with {sent} bytes, as the MTU here allows, do not pass between this host and {ip}; those with {passed} bytes do: longer accesses cost more packets"
            ),
            "set the same MTU on both hosts and on all switches and tunnels between them",
            verify,
        ));
    }
    match sent {
        PAYLOAD_BYTES_MAX => Some(Finding::ok(
            "mtu",
            format!("packets to {ip} carry {PAYLOAD_BYTES_MAX} bytes, the maximum"),
            verify,
        )),
        bytes => Some(Finding::new(
            "mtu",
            Severity::Note,
            format!(
                "packets to {ip} carry only {bytes} bytes, limited by the MTU: packets of {PAYLOAD_BYTES_MAX} bytes cost less per byte"
            ),
            "where the switches permit it, set the MTU of both cards to 4200 or more (ip link set dev NAME mtu 9000)",
            verify,
        )),
    }
}
