//! A database that cannot be opened. limitador does not compile without its storage on disk, which nobody measures, and
//! RocksDB takes longer to build than all else together.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

pub type DB = DBWithThreadMode<MultiThreaded>;

pub struct DBWithThreadMode<T>(Infallible, PhantomData<T>);

pub struct MultiThreaded;

type Row = Result<(Box<[u8]>, Box<[u8]>), Error>;

impl<T> DBWithThreadMode<T> {
    pub fn open(_: &Options, _: impl AsRef<Path>) -> Result<Self, Error> {
        Err(Error)
    }

    pub fn get(&self, _: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        match self.0 {}
    }

    pub fn merge(&self, _: impl AsRef<[u8]>, _: impl AsRef<[u8]>) -> Result<(), Error> {
        match self.0 {}
    }

    pub fn delete(&self, _: impl AsRef<[u8]>) -> Result<(), Error> {
        match self.0 {}
    }

    pub fn iterator(&self, _: IteratorMode) -> std::vec::IntoIter<Row> {
        match self.0 {}
    }

    pub fn prefix_iterator(&self, _: impl AsRef<[u8]>) -> std::vec::IntoIter<Row> {
        match self.0 {}
    }
}

pub enum IteratorMode {
    Start,
}

pub enum CompactionDecision {
    Keep,
    Remove,
}

pub enum DBCompressionType {
    Bz2,
    None,
}

#[derive(Default)]
pub struct Options;

impl Options {
    pub fn create_if_missing(&mut self, _: bool) {}

    pub fn set_compression_type(&mut self, _: DBCompressionType) {}

    pub fn set_compaction_filter(&mut self, _: &str, _: impl FnMut(u32, &[u8], &[u8]) -> CompactionDecision) {}

    pub fn set_merge_operator_associative(
        &mut self,
        _: &str,
        _: impl Fn(&[u8], Option<&[u8]>, &mut dyn Iterator<Item = &[u8]>) -> Option<Vec<u8>>,
    ) {
    }
}

#[derive(Clone, Debug)]
pub struct Error;

#[derive(PartialEq, Eq)]
pub enum ErrorKind {
    TimedOut,
    TryAgain,
    NotSupported,
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::NotSupported
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("there is no database")
    }
}

impl std::error::Error for Error {}
