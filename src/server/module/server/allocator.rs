//! Memory comes from the server, so that it is accounted for and can be defragmented.

#[cfg(test)]
pub use std::alloc::System as ServerAllocator;
/// The server's allocator; the system's in unit tests, which have no server.
#[cfg(not(test))]
pub use with_server::ServerAllocator;

#[cfg(not(test))]
mod with_server {
    use std::alloc::{GlobalAlloc, Layout};

    use redis_module::alloc::RedisAlloc;

    /// Adds to [`RedisAlloc`] only what that lacks: growing in place, which the exactly sized lists of counts rely on.
    pub struct ServerAllocator;

    // SAFETY: hands over to allocators that keep the contract. The server aligns to 16 bytes; nothing here needs more.
    unsafe impl GlobalAlloc for ServerAllocator {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the caller keeps the contract of this very method.
            unsafe { RedisAlloc.alloc(layout) }
        }

        unsafe fn dealloc(&self, allocation: *mut u8, layout: Layout) {
            // SAFETY: the caller keeps the contract of this very method.
            unsafe { RedisAlloc.dealloc(allocation, layout) }
        }

        unsafe fn realloc(&self, allocation: *mut u8, _layout: Layout, size: usize) -> *mut u8 {
            // SAFETY: the allocation came from `alloc`, that is from the server.
            unsafe { api!(RedisModule_Realloc(allocation.cast(), size)).cast() }
        }
    }
}
