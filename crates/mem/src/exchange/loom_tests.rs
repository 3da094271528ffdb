use loom::sync::{Arc, Condvar, Mutex};

use super::*;

fn pair() -> (Client, Server) {
    let (requests, replies) = (Lines::private(), Lines::private());
    let client = Client {
        requests: requests.clone(),
        replies: replies.clone(),
        freed: std::array::from_fn(|_| AtomicBool::new(false)),
    };
    (client, Server { requests, replies, taken: 0, uses: [0; SLOTS], busy: 0, naps: 0 })
}

fn request(slot: usize, content: u64) -> Line {
    [(slot as u64) << TAG_BITS, content]
}

fn serve(server: &mut Server, line: Line) -> bool {
    let slot = (line[0] >> TAG_BITS) as usize;
    server.take(slot).unwrap();
    server.complete(slot, [0, line[1] + 1], WORDS)
}

/// Sends requests, more than there are lines, and checks each reply.
#[test]
fn loom_lines_arrive_whole_and_in_order() {
    loom::model(|| {
        let (client, mut server) = pair();
        let server_thread = loom::thread::spawn(move || {
            for _ in 0..3 {
                let line = loop {
                    match server.peek() {
                        Some(line) => break line,
                        None => loom::thread::yield_now(),
                    }
                };
                serve(&mut server, line);
            }
        });
        let mut claims = Claims::default();
        let mut submit = |content: u64| {
            let claim = loop {
                match claims.claim(&client, false) {
                    Some(claim) => break claim,
                    None => loom::thread::yield_now(),
                }
            };
            claims.submit(&client, request(claim.slot, content), WORDS);
            claim
        };
        let await_reply = |claim, content: u64| {
            let line = loop {
                match client.reply(claim) {
                    Some(line) => break line,
                    None => loom::thread::yield_now(),
                }
            };
            assert_eq!(line[1], content + 1);
            client.release(claim);
        };
        let (first, second) = (submit(10), submit(20));
        await_reply(second, 20);
        let third = submit(30);
        await_reply(first, 10);
        await_reply(third, 30);
        server_thread.join().unwrap();
    });
}

/// A model of the socket, which wakes one side.
#[derive(Default)]
struct Socket {
    has_frame: Mutex<bool>,
    readable: Condvar,
}

impl Socket {
    fn send(&self) {
        *self.has_frame.lock().unwrap() = true;
        self.readable.notify_one();
    }

    fn sleep(&self) {
        let mut has_frame = self.has_frame.lock().unwrap();
        // A lost wake-up would block here forever, which loom reports as a deadlock.
        while !std::mem::take(&mut *has_frame) {
            has_frame = self.readable.wait(has_frame).unwrap();
        }
    }
}

#[test]
fn loom_a_server_that_sleeps_is_woken() {
    loom::model(|| {
        let (client, mut server) = pair();
        let socket = Arc::new(Socket::default());
        let client_thread = loom::thread::spawn({
            let socket = socket.clone();
            move || {
                let mut claims = Claims::default();
                let claim = claims.claim(&client, false).unwrap();
                claims.submit(&client, request(claim.slot, 10), WORDS);
                if client.nap().is_some() {
                    socket.send();
                }
            }
        });
        server.sleep();
        if server.peek().is_none() {
            socket.sleep();
        }
        server.wake();
        let line = server.peek().expect("the wake comes after the request");
        serve(&mut server, line);
        client_thread.join().unwrap();
    });
}

#[test]
fn loom_a_client_that_sleeps_is_woken() {
    loom::model(|| {
        let (client, mut server) = pair();
        let socket = Arc::new(Socket::default());
        let mut claims = Claims::default();
        let claim = claims.claim(&client, false).unwrap();
        claims.submit(&client, request(claim.slot, 10), WORDS);
        let is_sent = Arc::new(AtomicBool::new(false));
        let server_thread = loom::thread::spawn({
            let (socket, is_sent) = (socket.clone(), is_sent.clone());
            move || {
                let line = server.peek().unwrap();
                if serve(&mut server, line) {
                    is_sent.store(true, Ordering::Relaxed);
                    socket.send();
                }
            }
        });
        claims.ask_for_wakes(&client, 1 << claim.slot);
        if client.reply(claim).is_none() {
            socket.sleep();
            assert!(is_sent.load(Ordering::Relaxed));
        }
        assert_eq!(client.reply(claim).map(|line| line[1]), Some(11));
        server_thread.join().unwrap();
    });
}
