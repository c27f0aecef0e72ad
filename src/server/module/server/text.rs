//! The server's strings: arguments, key names, and the arguments of effects.

use std::borrow::Borrow;
use std::ffi::{c_longlong, CStr};
use std::hash::{Hash, Hasher};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use redis_module::raw;

/// A borrowed string of the server's.
#[repr(transparent)]
pub struct Text(*mut raw::RedisModuleString);

impl Text {
    /// A string of the server's.
    ///
    /// # Safety
    /// It outlives the borrow.
    pub(super) unsafe fn borrow(string: &*mut raw::RedisModuleString) -> &Self {
        // SAFETY: `Text` is transparent.
        unsafe { &*ptr::from_ref(string).cast() }
    }

    /// Strings of the server's.
    ///
    /// # Safety
    /// `first` points to `len` strings, and all outlive the borrow.
    pub(super) unsafe fn borrow_all<'a>(first: *mut *mut raw::RedisModuleString, len: usize) -> &'a [Self] {
        // SAFETY: the caller's promise, and `Text` is transparent.
        unsafe { slice::from_raw_parts(first.cast(), len) }
    }

    /// The string itself: any bytes.
    pub fn bytes(&self) -> &[u8] {
        let mut len = 0;
        // SAFETY: who made this keeps the string alive, and the server returns the bytes of a string it was given,
        // never null.
        unsafe {
            let bytes = api!(RedisModule_StringPtrLen(self.0, &mut len));
            slice::from_raw_parts(bytes.cast(), len)
        }
    }

    /// The same string, kept without a copy for as long as this is: an argument of a call outlives it then.
    pub fn share(&self) -> OwnText {
        // SAFETY: a string that is alive, of which one more reference is held.
        unsafe { api!(RedisModule_RetainString(ptr::null_mut(), self.0)) };
        OwnText(Text(self.0))
    }

    pub(super) fn raw(&self) -> *mut raw::RedisModuleString {
        self.0
    }
}

/// An owned string of the server's, or a share of one. It is compared by its bytes.
#[repr(transparent)]
pub struct OwnText(Text);

// SAFETY: only the server's main thread handles them; what is static has to be `Send`.
unsafe impl Send for OwnText {}

impl OwnText {
    /// A string with these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        // SAFETY: the server copies the bytes; a string made without a context lives until it is freed.
        let made = unsafe { api!(RedisModule_CreateString(ptr::null_mut(), bytes.as_ptr().cast(), bytes.len())) };
        Self(Text(made))
    }

    /// A string that the server has handed over.
    ///
    /// # Safety
    /// It is alive, and nobody else frees it.
    pub(super) unsafe fn from_raw(string: *mut raw::RedisModuleString) -> Self {
        Self(Text(string))
    }

    /// The same strings, borrowed.
    pub fn borrow_all<const N: usize>(own: &[Self; N]) -> &[Text; N] {
        // SAFETY: `OwnText` is transparent.
        unsafe { &*ptr::from_ref(own).cast() }
    }

    /// The same strings, borrowed.
    pub fn borrow_slice(own: &[Self]) -> &[Text] {
        // SAFETY: `OwnText` is transparent.
        unsafe { slice::from_raw_parts(own.as_ptr().cast(), own.len()) }
    }
}

impl std::ops::Deref for OwnText {
    type Target = Text;

    fn deref(&self) -> &Text {
        &self.0
    }
}

impl Clone for OwnText {
    fn clone(&self) -> Self {
        self.share()
    }
}

impl PartialEq for OwnText {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for OwnText {}

impl Hash for OwnText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl Borrow<[u8]> for OwnText {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for OwnText {
    fn drop(&mut self) {
        // SAFETY: made in `new` or shared, and freed only here; who else needs the string holds a reference.
        unsafe { api!(RedisModule_FreeString(ptr::null_mut(), self.0.raw())) };
    }
}

/// A constant argument of effects, made once.
pub(super) struct FixedText {
    text: &'static CStr,
    made: AtomicPtr<raw::RedisModuleString>,
}

impl FixedText {
    pub(super) const fn new(text: &'static CStr) -> Self {
        Self { text, made: AtomicPtr::new(ptr::null_mut()) }
    }

    #[inline(always)]
    pub(super) fn raw(&self) -> *mut raw::RedisModuleString {
        match self.made.load(Ordering::Relaxed) {
            made if made.is_null() => self.make(),
            made => made,
        }
    }

    #[cold]
    fn make(&self) -> *mut raw::RedisModuleString {
        // SAFETY: a string made without a context lives until it is freed, which this one never is.
        let made =
            unsafe { api!(RedisModule_CreateString(ptr::null_mut(), self.text.as_ptr(), self.text.count_bytes())) };
        self.made.store(made, Ordering::Relaxed);
        made
    }
}

/// A number in effects, made only when it differs from the last one: most costs are 1, and many commands run within
/// one millisecond.
pub(super) struct NumberText {
    last: AtomicU64,
    made: AtomicPtr<raw::RedisModuleString>,
}

impl NumberText {
    pub(super) const fn new() -> Self {
        Self { last: AtomicU64::new(0), made: AtomicPtr::new(ptr::null_mut()) }
    }

    #[inline(always)]
    pub(super) fn raw(&self, number: u64) -> *mut raw::RedisModuleString {
        let made = self.made.load(Ordering::Relaxed);
        if !made.is_null() && self.last.load(Ordering::Relaxed) == number {
            return made;
        }
        self.make(number)
    }

    fn make(&self, number: u64) -> *mut raw::RedisModuleString {
        let before = self.made.load(Ordering::Relaxed);
        // SAFETY: a string made without a context lives until it is freed. Commands run on one thread, and who else
        // needs the string holds a reference.
        let made = unsafe {
            if !before.is_null() {
                api!(RedisModule_FreeString(ptr::null_mut(), before));
            }
            api!(RedisModule_CreateStringFromLongLong(ptr::null_mut(), number as c_longlong))
        };
        self.last.store(number, Ordering::Relaxed);
        self.made.store(made, Ordering::Relaxed);
        made
    }
}
