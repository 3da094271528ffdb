//! Servers and clients over TCP and loopback.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use super::child::{ChildError, Tethered};
use super::cores::{CLIENT_CORE, SERVER_CORE};
use super::probe::ProbeError;

/// Time limit of a client, and of its server's end.
pub const RUN_LIMIT: Duration = Duration::from_secs(120);

/// Runs a server on `port` that serves one client, and its client. Returns the client's output. Both ends are the same
/// program.
pub fn run_pair(
    program: &str,
    port: u16,
    server_arguments: &[String],
    client_arguments: &[String],
    environment: &[(&str, &str)],
) -> Result<String, ChildError> {
    let program = Path::new(program);
    let mut server = Tethered::start(program, server_arguments, Some(SERVER_CORE), environment)?;
    server.await_ready(|| is_listening(port))?;
    let client = Tethered::start(program, client_arguments, Some(CLIENT_CORE), environment)?;
    let output = client.output(RUN_LIMIT)?;
    server.output(RUN_LIMIT)?;
    Ok(output)
}

/// Returns a port of the loopback interface that is free now.
pub fn free_port() -> Result<u16, ProbeError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(ProbeError::Port)?;
    Ok(listener.local_addr().map_err(ProbeError::Port)?.port())
}

/// Returns true if a server listens on `port`, according to the kernel's table of sockets. This cannot be tested by a
/// connection, because the server accepts only one.
pub fn is_listening(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = fs::read_to_string(table).unwrap_or_default();
        table.lines().any(|line| is_listener(line, port))
    })
}

/// Parses a line such as ` 0: 00000000:1A2B 00000000:0000 0A ...`: slot, local and remote address, state (0A:
/// listening).
fn is_listener(line: &str, port: u16) -> bool {
    let mut columns = line.split_whitespace().skip(1);
    let local = columns.next().and_then(|address| address.rsplit(':').next());
    local == Some(format!("{port:04X}").as_str()) && columns.nth(1) == Some("0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_recognised_in_the_table_of_sockets() {
        let listening = "   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0";
        assert!(is_listener(listening, 8080));
        assert!(!is_listener(listening, 8081));
        assert!(!is_listener(&listening.replace(" 0A ", " 01 "), 8080), "connected is not listening");
    }
}
