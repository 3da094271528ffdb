//! One stream of QUIC (`quinn` with default settings) over an emulated link.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
use quinn::{ClientConfig, Endpoint, ServerConfig};
use rcgen::{CertifiedKey, generate_simple_self_signed};

use super::meter::Meter;
use super::network::Network;

/// Bytes per write and read.
const PIECE_BYTES: usize = 64 << 10;
const FIRST_PORT: u16 = 6001;
/// Maximum wait of a blocked sender between checks for the end.
const WAIT_MAX: Duration = Duration::from_millis(5);
const NAME: &str = "links";

/// Returns the goodput of each of `flows` connections from side 0 to side 1, with one stream each, in megabits per
/// second, measured after `warm_up`.
pub fn goodput_mbps(
    network: &Network,
    flows: usize,
    warm_up: Duration,
    time: Duration,
) -> io::Result<Vec<f64>> {
    std::thread::scope(|scope| {
        let flow = |flow| scope.spawn(move || one_flow(network, FIRST_PORT + flow as u16, warm_up, time));
        let threads: Vec<_> = (0..flows).map(flow).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect()
    })
}

fn one_flow(network: &Network, port: u16, warm_up: Duration, time: Duration) -> io::Result<f64> {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed([NAME.to_owned()]).map_err(io::Error::other)?;
    let is_listening = Barrier::new(2);
    let is_over = AtomicBool::new(false);
    let to = SocketAddr::from((Network::address(1), port));
    let [sent, received] = network.both(|side| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime?.block_on(async {
            if side == 0 {
                is_listening.wait();
                let mut roots = quinn::rustls::RootCertStore::empty();
                roots.add(cert.der().clone()).map_err(io::Error::other)?;
                let config =
                    ClientConfig::with_root_certificates(Arc::new(roots)).map_err(io::Error::other)?;
                return send(to, config, &is_over).await.map(|()| 0.0);
            }
            let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
            let config = ServerConfig::with_single_cert(vec![cert.der().clone()], key.into());
            let endpoint = config.map_err(io::Error::other).and_then(|config| Endpoint::server(config, to));
            is_listening.wait();
            let received = receive(endpoint?, warm_up, time).await;
            is_over.store(true, Relaxed);
            received
        })
    });
    sent.and(received)
}

async fn receive(endpoint: Endpoint, warm_up: Duration, time: Duration) -> io::Result<f64> {
    let incoming = endpoint.accept().await.ok_or(io::ErrorKind::UnexpectedEof)?;
    let connection = incoming.await.map_err(io::Error::other)?;
    let mut stream = connection.accept_uni().await.map_err(io::Error::other)?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut meter = Meter::new(warm_up, time);
    loop {
        if let Some(mbps) = meter.poll() {
            return Ok(mbps);
        }
        let len = stream.read(&mut piece).await.map_err(io::Error::other)?;
        meter.bytes += len.ok_or(io::ErrorKind::UnexpectedEof)?;
    }
}

/// Sends until the receiver has finished. The receiver sets a flag, because a final message could get lost.
async fn send(to: SocketAddr, config: ClientConfig, is_over: &AtomicBool) -> io::Result<()> {
    let mut endpoint = Endpoint::client((Network::address(0), 0).into())?;
    endpoint.set_default_client_config(config);
    let connection = endpoint.connect(to, NAME).map_err(io::Error::other)?.await.map_err(io::Error::other)?;
    let mut stream = connection.open_uni().await.map_err(io::Error::other)?;
    let piece = vec![7; PIECE_BYTES];
    while !is_over.load(Relaxed) {
        // Ignores errors here; the receiver reports a lost connection.
        let _ = tokio::time::timeout(WAIT_MAX, stream.write_all(&piece)).await;
    }
    Ok(())
}
