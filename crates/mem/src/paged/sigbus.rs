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

/// An access of this thread to a [`Paged`]. Dropping it makes the previous [`Paged`] current again.
pub(super) struct Access<'a> {
    /// Not null if `on_fault` itself accesses present pages. The pointer type also keeps this type from being `Send`.
    previous: *const Paged,
    paged: PhantomData<&'a Paged>,
}

/// Makes `paged` the current [`Paged`] of this thread, which handles the faults in its range, until the result is
/// dropped.
#[inline]
pub(super) fn begin_access(paged: &Paged) -> Access<'_> {
    let previous = CURRENT.replace(paged);
    // The signal arrives on this thread, so only the compiler could reorder the store and the accesses.
    compiler_fence(SeqCst);
    Access { previous, paged: PhantomData }
}

impl Drop for Access<'_> {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        CURRENT.set(self.previous);
    }
}

/// The action that SIGBUS had before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler of SIGBUS, once per process.
pub(super) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let previous = replace_action(None)?;
        // The handler may run as soon as it is installed.
        let _ = PREVIOUS.set(previous);
        replace_action(Some(&action(on_signal as *const () as usize))).map(|_| ())
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// Returns an action for SIGBUS. The handler runs on the thread's own stack: alternate stacks are too small for the
/// code that provides pages.
fn action(handler: libc::sighandler_t) -> libc::sigaction {
    // SAFETY: all fields are integers, addresses or `None`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    action
}

/// Sets the action of SIGBUS to `action`, if it is given. Returns the previous action, or the error number.
fn replace_action(action: Option<&libc::sigaction>) -> Result<libc::sigaction, i32> {
    // SAFETY: all fields are integers, addresses or `None`.
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    let action = action.map_or(null(), std::ptr::from_ref);
    // SAFETY: both arguments are null or valid, and callers pass only on_signal() or the default action.
    match unsafe { libc::sigaction(libc::SIGBUS, action, &mut previous) } {
        0 => Ok(previous),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
    }
}

/// Handles SIGBUS. If the address is in the current [`Paged`], the signal has interrupted one of its copies or atomics,
/// so any code may run here. Otherwise, calls the previous handler.
extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let current = CURRENT.get();
    // SAFETY: the kernel passes a valid siginfo_t.
    let info_ref = unsafe { &*info };
    // SAFETY: its union has an address for SIGBUS.
    let address = unsafe { info_ref.si_addr() } as usize;
    if !current.is_null() {
        // SAFETY: begin_access() borrows the value until the access ends, and this thread is within the access.
        let paged = unsafe { &*current };
        // SAFETY: the kernel passes a valid ucontext_t.
        if paged.on_signal(address, unsafe { is_write(context) }) {
            return;
        }
    }
    // SAFETY: the kernel passed these arguments.
    unsafe { call_previous(signal, info, context) }
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

/// Calls the previous handler. Without one, the default action ends the process when the instruction repeats.
///
/// # Safety
/// The arguments are those that the kernel passed to the handler.
unsafe fn call_previous(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type WithInfo = extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void);
    type Plain = extern "C" fn(c_int);
    let previous = PREVIOUS.get().filter(|previous| {
        // An ignored fault would repeat for ever.
        previous.sa_sigaction != libc::SIG_DFL && previous.sa_sigaction != libc::SIG_IGN
    });
    let Some(previous) = previous else {
        let _ = replace_action(Some(&libc::sigaction { sa_flags: 0, ..action(libc::SIG_DFL) }));
        return;
    };
    if previous.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: an action with SA_SIGINFO has a handler of this type.
        let handler = unsafe { std::mem::transmute::<libc::sighandler_t, WithInfo>(previous.sa_sigaction) };
        handler(signal, info, context);
    } else {
        // SAFETY: an action without SA_SIGINFO has a handler of this type.
        let handler = unsafe { std::mem::transmute::<libc::sighandler_t, Plain>(previous.sa_sigaction) };
        handler(signal);
    }
}
