//! Configuration files and their text.

use std::io;
use std::path::{Path, PathBuf};

use super::error::ConfigError;

/// A file's name and text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub file: String,
    pub text: String,
}

impl Source {
    /// Reads a file of UTF-8 text.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self { file, text }),
            Err(error) => Err(ConfigError::in_file(&file, error)),
        }
    }

    /// Reads files, and all files of folders. A folder without a file is an error.
    pub fn read_all(paths: &[PathBuf], ignore_dot_files: bool) -> Result<Vec<Self>, ConfigError> {
        let mut files = Vec::new();
        for path in paths {
            let error = |error: io::Error| ConfigError::in_file(&path.to_string_lossy(), error);
            if !path.is_dir() {
                files.push(path.clone());
                continue;
            }
            let folder = Folder::read(path, ignore_dot_files).map_err(error)?;
            if folder.files.is_empty() {
                return Err(ConfigError::in_file(&path.to_string_lossy(), "the folder has no file"));
            }
            files.extend(folder.files);
        }
        files.iter().map(|file| Self::read(file)).collect()
    }
}

/// What a folder holds, as envoyproxy/ratelimit walks it: files of any name, also in folders below it; links to files,
/// but no links to folders.
#[derive(Default)]
pub struct Folder {
    /// By name.
    pub files: Vec<PathBuf>,
    /// The folder itself, and those below it.
    pub folders: Vec<PathBuf>,
}

impl Folder {
    pub fn read(path: &Path, ignore_dot_files: bool) -> io::Result<Self> {
        let mut found = Self::default();
        found.walk(path.into(), ignore_dot_files)?;
        Ok(found)
    }

    fn walk(&mut self, folder: PathBuf, ignore_dot_files: bool) -> io::Result<()> {
        let mut entries = folder.read_dir()?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        self.folders.push(folder);
        for entry in entries {
            let path = entry.path();
            if ignore_dot_files && entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if entry.file_type()?.is_dir() {
                self.walk(path, ignore_dot_files)?;
            } else if !path.is_dir() {
                self.files.push(path);
            }
        }
        Ok(())
    }
}
