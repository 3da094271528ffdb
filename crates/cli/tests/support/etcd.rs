//! An etcd for one test, from Debian's package, with or without TLS and users.

mod daemon;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};

use rustix::net::{AddressFamily, SocketType};
use tempfile::TempDir;

use self::daemon::{Daemon, Ports};
use super::Scratch;

pub struct Etcd {
    pub port: u16,
    ports: Ports,
    /// Data directory on a tmpfs: etcd syncs each change, which takes seconds on a busy disk.
    #[expect(dead_code, reason = "removed when dropped")]
    memory: TempDir,
    data: PathBuf,
    flags: Vec<String>,
    tls: Option<PathBuf>,
    daemon: Option<Daemon>,
}

/// An address of this host that refuses connections: no other process can listen there while this value exists.
pub struct ClosedPort(OwnedFd);

impl ClosedPort {
    pub fn new() -> ClosedPort {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        ClosedPort(socket)
    }
}

impl std::fmt::Display for ClosedPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let address = SocketAddrV4::try_from(rustix::net::getsockname(&self.0).unwrap()).unwrap();
        address.fmt(f)
    }
}

fn is_installed() -> bool {
    let is_there = daemon::is_installed();
    if !is_there {
        eprintln!("skipped: there is no etcd here (`apt-get install etcd-server etcd-client`)");
    }
    is_there
}

impl Etcd {
    /// Starts etcd. Returns `None` if etcd is not installed.
    pub fn start() -> Option<Etcd> {
        Etcd::start_with(&[])
    }

    /// Starts etcd with additional flags. Returns `None` if etcd is not installed.
    pub fn start_with(flags: &[&str]) -> Option<Etcd> {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        is_installed().then(|| Etcd::start_at(flags, None))
    }

    /// Starts an etcd with TLS that requires client certificates of its authority. Returns `None` if etcd is not
    /// installed.
    pub fn start_with_tls(scratch: &Scratch) -> Option<Etcd> {
        if !is_installed() {
            return None;
        }
        let certs = scratch.file("certs");
        std::fs::create_dir(&certs).unwrap();
        issue_certs(&certs);
        Authority::new("other-ca", &certs).issue(&["stranger"]);
        let file = |name: &str| certs.join(name).to_str().unwrap().to_owned();
        let flags =
            [("--cert-file", "server.pem"), ("--key-file", "server.key"), ("--trusted-ca-file", "ca.pem")];
        let mut flags: Vec<String> = flags.map(|(flag, name)| format!("{flag}={}", file(name))).into();
        flags.push("--client-cert-auth".to_owned());
        Some(Etcd::start_at(flags, Some(certs)))
    }

    fn start_at(flags: Vec<String>, tls: Option<PathBuf>) -> Etcd {
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let data = memory.path().join("data");
        let (daemon, ports) = Daemon::start(&data, scheme(&tls), &flags);
        Etcd { port: ports.clients, ports, memory, data, flags, tls, daemon: Some(daemon) }
    }

    pub fn run(&mut self) {
        let daemon = Daemon::start_at(&self.data, scheme(&self.tls), &self.flags, self.ports);
        self.daemon = Some(daemon.expect("etcd starts again"));
    }

    pub fn kill(&mut self) {
        self.daemon = None;
    }

    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().unwrap().pid()
    }

    /// Deletes the data and restarts etcd.
    pub fn forget_all(&mut self) {
        self.kill();
        std::fs::remove_dir_all(&self.data).unwrap();
        self.run();
    }

    /// Copies the current data to a backup.
    pub fn back_up(&mut self) {
        let backup = self.backup();
        self.copy(&self.data.clone(), &backup);
    }

    /// Restores the data from the backup.
    pub fn restore(&mut self) {
        let data = self.data.clone();
        self.copy(&self.backup(), &data);
    }

    fn backup(&self) -> PathBuf {
        self.data.with_extension("backup")
    }

    fn copy(&mut self, from: &Path, to: &Path) {
        self.kill();
        let _ = std::fs::remove_dir_all(to);
        let copied = Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap();
        assert!(copied.success());
        self.run();
    }

    /// Restarts etcd with certificates of another authority, which replace the files of the previous ones.
    pub fn renew_certs(&mut self) {
        self.kill();
        issue_certs(self.tls.as_ref().unwrap());
        self.run();
    }

    pub fn address(&self, prefix: &str) -> String {
        format!("etcd://127.0.0.1:{}/{prefix}", self.port)
    }

    /// Returns the path of a TLS file.
    pub fn cert(&self, name: &str) -> String {
        self.tls.as_ref().unwrap().join(name).to_str().unwrap().to_owned()
    }

    /// Runs `etcdctl`, which must succeed.
    #[track_caller]
    pub fn ctl(&self, line: &[&str]) -> String {
        let output = self.run_ctl(line);
        assert!(output.status.success(), "{line:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns true if `etcdctl` succeeds.
    pub fn try_ctl(&self, line: &[&str]) -> bool {
        self.run_ctl(line).status.success()
    }

    fn run_ctl(&self, line: &[&str]) -> Output {
        let mut command = Command::new("etcdctl");
        let endpoint = format!("{}://127.0.0.1:{}", scheme(&self.tls), self.port);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &endpoint]);
        if self.tls.is_some() {
            for (flag, name) in [("--cacert", "ca.pem"), ("--cert", "client.pem"), ("--key", "client.key")] {
                command.args([flag, &self.cert(name)]);
            }
        }
        command.args(line).output().unwrap()
    }
}

fn scheme(tls: &Option<PathBuf>) -> &'static str {
    if tls.is_some() { "https" } else { "http" }
}

fn issue_certs(certs: &Path) {
    Authority::new("ca", certs).issue(&["server", "client", "named"]);
}

/// A certificate authority.
struct Authority<'d> {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: &'d Path,
}

impl Authority<'_> {
    fn new<'d>(name: &str, dir: &'d Path) -> Authority<'d> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(dir.join(name).with_extension("pem"), issuer.pem()).unwrap();
        Authority { issuer, dir }
    }

    /// Issues certificates for this host, each with its key.
    fn issue(&self, names: &[&str]) {
        for name in names {
            let mut params = CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            if *name == "named" {
                params.distinguished_name.push(rcgen::DnType::CommonName, "halite");
            }
            params.subject_alt_names = vec![SanType::IpAddress(Ipv4Addr::LOCALHOST.into())];
            // The gateway of etcd connects to etcd itself with the server's certificate.
            params.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().unwrap();
            let cert = params.signed_by(&key, &self.issuer).unwrap();
            std::fs::write(self.dir.join(name).with_extension("pem"), cert.pem()).unwrap();
            std::fs::write(self.dir.join(name).with_extension("key"), key.serialize_pem()).unwrap();
        }
    }
}
