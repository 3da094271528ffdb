//! TLS files. A node reads these files again before it reopens a failed connection, so certificates can be replaced
//! while the node runs.

use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig, TlsProvider};

use super::address::TlsFiles;
use crate::error::{EtcdError, EtcdFault};

/// Maximum number of bytes read from a file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Returns the configuration from the files, for `ureq`.
pub(super) fn config(files: &TlsFiles) -> Result<TlsConfig, EtcdError> {
    // Finds a key of another certificate here, because `ureq` does not check.
    client_config(files)?;
    let to_certificates = |all: Vec<CertificateDer<'static>>| -> Vec<Certificate<'static>> {
        all.iter().map(|der| Certificate::from_der(der).to_owned()).collect()
    };
    let own = match &files.own {
        Some((cert, key)) => {
            let private = PrivateKey::from_pem(&read(key)?).map_err(|_| no_key(key))?;
            Some(ClientCert::new_with_certs(&to_certificates(certificates(cert)?), private))
        }
        None => None,
    };
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&to_certificates(certificates(&files.ca)?)))
        .client_cert(own)
        .build())
}

/// Returns the reason with which a server ends new connections, if it sends one. A server rejects a certificate only
/// after the handshake, when the node's writes may already fail.
pub(super) fn end_reason(files: &TlsFiles, endpoint: &str, timeout: Duration) -> Option<rustls::Error> {
    let (host, _) = endpoint.rsplit_once(':')?;
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).ok()?;
    let mut connection = ClientConnection::new(Arc::new(client_config(files).ok()?), name).ok()?;
    let address = endpoint.to_socket_addrs().ok()?.next()?;
    let mut socket = TcpStream::connect_timeout(&address, timeout).ok()?;
    socket.set_read_timeout(Some(timeout)).ok()?;
    socket.set_write_timeout(Some(timeout)).ok()?;
    let until = Instant::now() + timeout;
    while Instant::now() < until {
        while connection.wants_write() {
            connection.write_tls(&mut socket).ok()?;
        }
        if connection.read_tls(&mut socket).ok()? == 0 {
            return None;
        }
        if let Err(error) = connection.process_new_packets() {
            return Some(error);
        }
    }
    None
}

fn client_config(files: &TlsFiles) -> Result<ClientConfig, EtcdError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(&files.ca)?);
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them");
    let builder = builder.with_root_certificates(roots);
    let Some((cert, key)) = &files.own else { return Ok(builder.with_no_client_auth()) };
    let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| no_key(key))?;
    let wrong_key = |error| file_error(key, &format!("it is not the key of {}: {error}", cert.display()));
    builder.with_client_auth_cert(certificates(cert)?, private).map_err(wrong_key)
}

/// Reads a file, but at most `FILE_BYTES_MAX` bytes; no valid file is longer.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, EtcdError> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(bytes),
        Err(error) => Err(file_error(path, &error.to_string())),
    }
}

pub(super) fn file_error(path: &Path, why: &str) -> EtcdError {
    EtcdError { fault: EtcdFault::File, reason: format!("{}: {why}", path.display()) }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, EtcdError> {
    let pem = read(path)?;
    let all: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(file_error(path, "it holds no certificate in PEM format")),
    }
}

fn no_key(path: &Path) -> EtcdError {
    file_error(path, "it holds no unencrypted private key in PEM format")
}
