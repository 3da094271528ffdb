//! What goes over the wire, by dumpcap, and what it means, by tshark.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{ChildStderr, ChildStdout, Command};

use rustix::process::{Pid, Signal, kill_process};

use crate::world::{DEVICES, Network, Running};

/// Ends a capture.
const MARK: &[u8] = b"nothing comes behind this";

/// A capture that is being made.
pub struct Listening<'a> {
    network: &'a Network,
    dumpcap: Running,
    stdout: ChildStdout,
    stderr: BufReader<ChildStderr>,
    /// Of the side where packets are captured.
    address: String,
}

impl<'a> Listening<'a> {
    /// Returns when packets are being captured at one side.
    pub fn start(network: &'a Network, side: usize) -> Listening<'a> {
        let words = ["dumpcap", "-q", "-i", DEVICES[side], "-P", "-B", "64", "-w", "-", "-f", "udp"];
        let mut dumpcap = network.start(side, &words);
        let stdout = dumpcap.0.stdout.take().unwrap();
        let mut stderr = BufReader::new(dumpcap.0.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("File:") {
            assert!(stderr.read_line(&mut said).unwrap() > 0, "dumpcap does not begin: {said}");
        }
        Listening { network, dumpcap, stdout, stderr, address: format!("10.77.0.{}:9", 2 - side) }
    }

    /// Writes all that was on the wire until now into a file.
    pub fn end(mut self, path: &Path) {
        let mark = self.network.inside(0, || UdpSocket::bind("10.77.0.1:0")).unwrap();
        mark.send_to(MARK, &self.address).unwrap();
        let (mut bytes, mut part) = (Vec::new(), vec![0; 1 << 16]);
        while !bytes.windows(MARK.len()).rev().take(2 << 16).any(|window| window == MARK) {
            let len = self.stdout.read(&mut part).unwrap();
            assert!(len > 0, "dumpcap ends before it was to");
            bytes.extend(&part[..len]);
        }
        kill_process(Pid::from_child(&self.dumpcap.0), Signal::INT).unwrap();
        self.stdout.read_to_end(&mut bytes).unwrap();
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        // "Packets received/dropped on interface 'left': 812/0 (pcap:0/...".
        let counts = said.split("': ").nth(1).and_then(|rest| rest.split(' ').next());
        assert!(counts.is_some_and(|counts| counts.ends_with("/0")), "the capture has gaps: {said}");
        std::fs::write(path, bytes).unwrap();
    }
}

/// What tshark shows of a packet.
#[derive(Clone, Debug)]
pub struct Row {
    /// Who has sent it.
    pub source: String,
    /// By name, those that it does not have missing.
    pub fields: BTreeMap<&'static str, u64>,
}

/// Where it comes from, and what tshark has to complain about.
const WORDS: [&str; 4] = ["ip.src", "ipv6.src", "_ws.malformed", "_ws.expert.message"];
const NUMBERS: [&str; 25] = [
    "ip.id",
    "udp.srcport",
    "udp.dstport",
    "udp.length",
    "data.len",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.reserved7",
    "infiniband.bth.psn",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.invariant.crc",
];

/// Decodes a capture as RoCEv2 where it is from or to this port.
pub fn decode(capture: &Path, port: u16) -> Vec<Row> {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(capture);
    command.args(["-d", &format!("udp.port=={port},infiniband"), "-Y", &format!("udp.port=={port}")]);
    // Payloads are not what they may look like.
    command.args(["--disable-heuristic", "eth_over_ib", "--disable-heuristic", "mellanox_eoib"]);
    command.args(["-T", "fields", "-E", "separator=/t", "-E", "occurrence=f"]);
    for field in WORDS.iter().chain(&NUMBERS) {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(row).collect()
}

fn row(line: &str) -> Row {
    let columns: Vec<&str> = line.split('\t').collect();
    let (words, numbers) = columns.split_at(WORDS.len());
    // It takes some ports that the system may choose for those of traceroute.
    let complaints =
        words[2..].iter().filter(|said| !said.is_empty() && !said.starts_with("Possible traceroute"));
    assert_eq!(complaints.count(), 0, "tshark complains: {:?}", &words[2..]);
    let shown = NUMBERS.into_iter().zip(numbers).filter(|(_, value)| !value.is_empty());
    let fields = shown.map(|(name, value)| (name, number(name, value))).collect();
    Row { source: words[..2].concat(), fields }
}

fn number(name: &str, text: &str) -> u64 {
    let parsed = match (text.strip_prefix("0x"), text) {
        (Some(hex), _) => u64::from_str_radix(hex, 16),
        (None, "True") => Ok(1),
        (None, "False") => Ok(0),
        // Shown as bytes.
        (None, hex) if name == "infiniband.immdt" => u64::from_str_radix(hex, 16),
        (None, decimal) => decimal.parse(),
    };
    parsed.unwrap_or_else(|error| panic!("{name}: {text}: {error}"))
}
