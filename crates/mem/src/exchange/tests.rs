use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::*;

fn request(slot: usize, content: u64) -> Line {
    let mut line = [content; WORDS];
    line[0] = (slot as u64) << TAG_BITS;
    line
}

#[test]
fn replies_come_in_any_order_and_lines_are_reused() {
    let (mut server, fds) = create().unwrap();
    let client = Client::open(fds).unwrap();
    let mut claims = Claims::default();
    for round in 0..100 {
        let claimed: Vec<Claim> = (0..SLOTS).map(|_| claims.claim(&client, false).unwrap()).collect();
        assert_eq!(claims.claim(&client, false), None, "all slots are in use");
        for (number, claim) in (0..).zip(&claimed) {
            claims.submit(&client, request(claim.slot, round + number), WORDS);
        }
        let mut slots: Vec<(usize, u64)> = std::iter::from_fn(|| {
            let line = server.peek()?;
            let slot = (line[0] >> TAG_BITS) as usize;
            server.take(slot).unwrap();
            Some((slot, line[7]))
        })
        .collect();
        assert_eq!(slots.len(), SLOTS);
        slots.reverse();
        for (slot, content) in slots {
            assert!(!server.complete(slot, request(slot, content + 1), WORDS));
        }
        for (number, claim) in (0..).zip(claimed) {
            assert_eq!(client.reply(claim).unwrap()[7], round + number + 1);
            client.release(claim);
        }
    }
    // The tag of each slot wraps.
    for number in 0..200_000 {
        let claim = claims.claim(&client, false).unwrap();
        assert_eq!(client.reply(claim), None, "the reply of the previous use is stale");
        claims.submit(&client, request(claim.slot, number), WORDS);
        assert_eq!(server.peek().unwrap()[1], number);
        server.take(claim.slot).unwrap();
        assert_eq!(server.peek(), None);
        server.complete(claim.slot, request(claim.slot, number), WORDS);
        assert_eq!(client.reply(claim).unwrap()[1], number);
        client.release(claim);
    }
}

#[test]
fn a_client_cannot_change_replies_or_the_size_of_the_memory() {
    let (server, [requests, replies]) = create().unwrap();
    for fd in [&requests, &replies] {
        assert_eq!(rustix::fs::ftruncate(fd, 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(fd, 1 << 30), Err(Errno::PERM));
        assert_eq!(rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM));
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::io::pwrite(&replies, &[1; 64], 64), Err(Errno::PERM));
    assert_eq!(rustix::fs::fallocate(&replies, punch, 0, REPLIES_BYTES), Err(Errno::PERM));
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let len = REPLIES_BYTES as usize;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
    let mapped =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &replies, 0) };
    assert_eq!(mapped, Err(Errno::PERM));

    // The client may punch holes into the requests, which then read as zero.
    let fd = requests.try_clone().unwrap();
    let client = Client::open([requests, replies]).unwrap();
    let mut claims = Claims::default();
    let claim = claims.claim(&client, false).unwrap();
    client.write(claim, &[7; SLOT_BYTES]).unwrap();
    claims.submit(&client, request(claim.slot, 1), WORDS);
    rustix::fs::fallocate(&fd, punch, 0, REQUESTS_BYTES).unwrap();
    assert_eq!(server.peek(), None);
    let mut bytes = [1; SLOT_BYTES];
    server.read(claim.slot, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    server.write(claim.slot, &bytes).unwrap();
}

#[test]
fn a_slot_takes_one_request_at_a_time() {
    let (mut server, fds) = create().unwrap();
    let client = Client::open(fds).unwrap();
    let mut claims = Claims::default();
    for _ in 0..2 {
        claims.submit(&client, request(3, 0), WORDS);
    }
    assert_eq!((server.take(3), server.take(3), server.take(SLOTS)), (Ok(()), Err(BadSlot), Err(BadSlot)));
    let claim = Claim { slot: SLOTS - 1, tag: 1 };
    assert!(client.write(claim, &[0; SLOT_BYTES + 1]).is_err());
    assert!(server.read(SLOTS, &mut [0]).is_err());
}
