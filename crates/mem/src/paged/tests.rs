use std::process::Command;
use std::sync::{Arc, Mutex};

use super::*;

type Faults = Arc<Mutex<Vec<Fault>>>;

/// Returns pages and the list of their faults; `None` if the system refuses. A fault fills its page with the page
/// number plus one. After a load, the page is protected.
fn pages(count: usize) -> Option<(Paged, Faults)> {
    let faults = Faults::default();
    let seen = faults.clone();
    let created = Paged::new(count, move |pages, fault| {
        seen.lock().unwrap().push(fault);
        let bytes = vec![fault.page as u8 + 1; pages.page_bytes()];
        if !pages.fill(fault.page, &bytes, !fault.is_write).unwrap() && fault.is_write {
            pages.unprotect(fault.page..fault.page + 1).unwrap();
        }
    });
    match created {
        Err(why @ (PagedError::Refused | PagedError::Unsupported)) => {
            eprintln!("skipped: {why}");
            None
        }
        created => Some((created.unwrap(), faults)),
    }
}

fn take_faults(faults: &Faults) -> Vec<(usize, bool)> {
    faults.lock().unwrap().drain(..).map(|fault| (fault.page, fault.is_write)).collect()
}

#[test]
fn first_touches_and_first_stores_fault_once() {
    let Some((pages, faults)) = pages(4) else { return };
    let page_bytes = pages.page_bytes() as u64;
    let ones = u64::from_ne_bytes([1; 8]);
    assert_eq!((pages.load_u64(8), pages.load_u64(16)), (Ok(ones), Ok(ones)));
    assert_eq!(take_faults(&faults), [(0, false)]);
    pages.store_u64(8, 7).unwrap();
    pages.write(16, b"salt").unwrap();
    assert_eq!(take_faults(&faults), [(0, true)]);
    // A store to an absent page faults once, as a store. A copy across a page border faults once per page.
    pages.store_u64(3 * page_bytes, 5).unwrap();
    let mut border = [0; 4];
    pages.read(2 * page_bytes - 2, &mut border).unwrap();
    assert_eq!(take_faults(&faults), [(3, true), (1, false), (2, false)]);
    assert_eq!(border, [2, 2, 3, 3]);
    // Protection keeps the bytes; discarding loses them.
    pages.protect(0..4).unwrap();
    assert_eq!(pages.load_u64(8), Ok(7));
    assert_eq!(take_faults(&faults), []);
    pages.store_u64(8, 9).unwrap();
    assert_eq!(take_faults(&faults), [(0, true)]);
    pages.discard(0..1).unwrap();
    assert_eq!(pages.load_u64(8), Ok(ones));
    assert_eq!(take_faults(&faults), [(0, false)]);
}

#[test]
fn threads_may_touch_one_page_at_once() {
    let Some((pages, _)) = pages(64) else { return };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pages = &pages;
            scope.spawn(move || {
                for page in 0..pages.pages() {
                    let at = (page * pages.page_bytes() + 8 * thread) as u64;
                    assert_eq!(pages.load_u64(at), Ok(u64::from_ne_bytes([page as u8 + 1; 8])));
                    pages.store_u64(at, thread as u64).unwrap();
                }
            });
        }
    });
    for thread in 0..4 {
        assert_eq!(pages.load_u64(8 * thread), Ok(thread));
    }
}

#[test]
fn accesses_out_of_bounds_change_nothing() {
    let Some((pages, faults)) = pages(2) else { return };
    let len = pages.len();
    let outside = |offset, len| OutOfBounds { offset, len, window_len: pages.len() };
    assert_eq!(pages.read(len - 1, &mut [0; 2]), Err(outside(len - 1, 2)));
    assert_eq!(pages.write(u64::MAX, b"a"), Err(outside(u64::MAX, 1)));
    assert_eq!(pages.load_u64(4), Err(AccessError::Misaligned { offset: 4, alignment: 8 }));
    assert_eq!(take_faults(&faults), []);
    assert!(matches!(Paged::new(0, |_, _| {}), Err(PagedError::Length { pages: 0 })));
    assert!(matches!(Paged::new(usize::MAX, |_, _| {}), Err(PagedError::Length { .. })));
}

#[test]
fn a_system_call_on_an_absent_page_fails() {
    let Some((pages, faults)) = pages(1) else { return };
    // SAFETY: the page is mapped while `pages` lives, and the kernel alone reads it.
    let bytes = unsafe { std::slice::from_raw_parts(pages.base.as_ptr(), 4) };
    let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(rustix::io::write(&file, bytes), Err(Errno::FAULT));
    assert_eq!(take_faults(&faults), []);
    pages.load_u64(0).unwrap();
    assert_eq!(rustix::io::write(&file, bytes), Ok(4));
}

/// The last line that a child process prints before its fault outside all pages.
const OUTSIDE: &str = "about to fault outside";

#[test]
fn an_unrelated_fault_still_kills_the_process() {
    const IS_CHILD: &str = "HALITE_MEM_FAULT_OUTSIDE";
    if std::env::var_os(IS_CHILD).is_none() {
        let test = "paged::tests::an_unrelated_fault_still_kills_the_process";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.args([test, "--exact", "--nocapture"]).env(IS_CHILD, "1").output().unwrap();
        let output = String::from_utf8_lossy(&child.stdout).into_owned();
        let is_skipped = child.status.success() && String::from_utf8_lossy(&child.stderr).contains("skipped");
        assert!(is_skipped || output.contains(OUTSIDE), "{output}");
        // The signal or a sanitizer's handler ended the child: the exit status is neither success nor a panic.
        assert!(is_skipped || !matches!(child.status.code(), Some(0 | 101)), "{:?}", child.status);
        return;
    }
    let Some((pages, _)) = pages(1) else { return };
    pages.load_u64(0).unwrap();
    let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
    let beyond_the_end = unsafe {
        rustix::mm::mmap(null_mut(), pages.page_bytes(), ProtFlags::READ, MapFlags::SHARED, &file, 0)
    };
    println!("{OUTSIDE}");
    // The page lies behind the end of its file, so the kernel sends SIGBUS.
    let mut byte = [0_u8];
    let _access = sigbus::begin_access(&pages);
    // SAFETY: the load faults, and the process ends.
    unsafe { copy::copy(byte.as_mut_ptr(), beyond_the_end.unwrap().cast(), 1) };
    unreachable!("{byte:?}");
}

#[test]
fn ordinary_users_can_create_pages() {
    const IS_CHILD: &str = "HALITE_MEM_ORDINARY_USER";
    if std::env::var_os(IS_CHILD).is_some() {
        assert!(pages(1).is_none_or(|(pages, _)| pages.load_u64(0).is_ok()));
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root; the other tests already run as an ordinary user");
        return;
    }
    // An ordinary user may lack access to the folder of the test program.
    let dir = std::env::temp_dir().join(format!("halite-mem-paged-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &dir).unwrap();
    let child = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&dir)
        .args(["paged::tests::ordinary_users_can_create_pages", "--exact"])
        .env(IS_CHILD, "1")
        .output();
    std::fs::remove_file(&dir).unwrap();
    match child {
        Err(why) => eprintln!("skipped: no setpriv: {why}"),
        Ok(child) => assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout)),
    }
}
