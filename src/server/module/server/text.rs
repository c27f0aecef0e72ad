//! The server's strings: arguments and key names.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::ptr;
use std::slice;

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
