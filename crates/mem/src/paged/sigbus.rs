//! The process's handler of SIGBUS.
//!
//! A thread names the [`Paged`] that it accesses before each access, so the handler needs no list of ranges, and takes
//! no lock. A signal whose address is outside the range of that [`Paged`] goes to the handler that SIGBUS had before.

use std::cell::Cell;
use std::ffi::c_int;
use std::io;
use std::marker::PhantomData;
use std::ptr::null;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::compiler_fence;

use super::Paged;

thread_local! {
    /// The [`Paged`] that this thread is accessing now; null if there is none.
    static CURRENT: Cell<*const Paged> = const { Cell::new(null()) };
}

/// Ends the handling of faults when dropped.
pub(super) struct Handled<'a> {
    /// The [`Paged`] that this thread was accessing before, because `on_fault` may access present pages. The pointer
    /// keeps this type from being `Send`.
    former: *const Paged,
    paged: PhantomData<&'a Paged>,
}

/// Makes `paged` handle the faults of this thread in its range, until the result is dropped.
#[inline]
pub(super) fn handled_by(paged: &Paged) -> Handled<'_> {
    let former = CURRENT.replace(paged);
    // The signal arrives on this thread: the compiler alone could move accesses over the store.
    compiler_fence(SeqCst);
    Handled { former, paged: PhantomData }
}

impl Drop for Handled<'_> {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        CURRENT.set(self.former);
    }
}

/// The action that SIGBUS had before.
static FORMER: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler of SIGBUS, once per process.
pub(super) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let former = exchange(None)?;
        // The handler may run as soon as it is installed.
        let _ = FORMER.set(former);
        exchange(Some(&action(on_signal as *const () as usize))).map(|_| ())
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// Makes an action for SIGBUS. The handler runs on the thread's own stack, because an alternate one is too small for
/// what programs do to provide a page.
fn action(handler: libc::sighandler_t) -> libc::sigaction {
    // SAFETY: all fields are integers, addresses or `None`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    action
}

/// Sets the action of SIGBUS, if one is given. Returns the former one, or the error number.
fn exchange(action: Option<&libc::sigaction>) -> Result<libc::sigaction, i32> {
    // SAFETY: all fields are integers, addresses or `None`.
    let mut former: libc::sigaction = unsafe { std::mem::zeroed() };
    let action = action.map_or(null(), std::ptr::from_ref);
    // SAFETY: both arguments are null or valid, and the only handler given here keeps to its duties, see on_signal().
    match unsafe { libc::sigaction(libc::SIGBUS, action, &mut former) } {
        0 => Ok(former),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
    }
}

/// Handles SIGBUS. Where the signal is about a page of the current [`Paged`], the interrupted code is one of its copies
/// or atomics, so that any code may run here; everywhere else this calls the former handler only.
extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let current = CURRENT.get();
    // SAFETY: the kernel passes a valid siginfo_t.
    let about = unsafe { &*info };
    // SAFETY: its union has an address for SIGBUS.
    let address = unsafe { about.si_addr() } as usize;
    if !current.is_null() {
        // SAFETY: handled_by() borrows the value until the access is over, and this thread is within the access.
        let paged = unsafe { &*current };
        // SAFETY: the kernel passes a valid ucontext_t.
        if paged.on_signal(address, unsafe { is_write(context) }) {
            return;
        }
    }
    // SAFETY: the arguments are those that the kernel passed.
    unsafe { pass_on(signal, info, context) }
}

/// Returns true if a store has faulted.
///
/// # Safety
/// `context` is the third argument of a signal handler.
#[cfg(target_arch = "x86_64")]
unsafe fn is_write(context: *mut libc::c_void) -> bool {
    /// Bit of a page fault's error code (Intel's manual, volume 3, "Page-Fault Exceptions").
    const IS_WRITE: i64 = 1 << 1;
    // SAFETY: per the caller.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & IS_WRITE != 0
}

/// Never called: no [`Paged`] exists on other processors.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn is_write(_context: *mut libc::c_void) -> bool {
    true
}

/// Calls the former handler. Without one, the default action ends the process when the instruction repeats.
///
/// # Safety
/// The arguments are those that the kernel passed to the handler.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type WithInfo = extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void);
    type Plain = extern "C" fn(c_int);
    let former = FORMER.get().filter(|former| {
        // A fault that is ignored would repeat for ever.
        former.sa_sigaction != libc::SIG_DFL && former.sa_sigaction != libc::SIG_IGN
    });
    let Some(former) = former else {
        let _ = exchange(Some(&libc::sigaction { sa_flags: 0, ..action(libc::SIG_DFL) }));
        return;
    };
    if former.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: an action with SA_SIGINFO has a handler of this type.
        let handler = unsafe { std::mem::transmute::<libc::sighandler_t, WithInfo>(former.sa_sigaction) };
        handler(signal, info, context);
    } else {
        // SAFETY: an action without SA_SIGINFO has a handler of this type.
        let handler = unsafe { std::mem::transmute::<libc::sighandler_t, Plain>(former.sa_sigaction) };
        handler(signal);
    }
}
