//! Configuration files and their text.

use std::path::{Path, PathBuf};

use super::error::ConfigError;

/// A file's name and text.
#[derive(Debug, PartialEq, Eq)]
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

    /// Reads files, and the YAML files of folders.
    pub fn read_all(paths: &[PathBuf]) -> Result<Vec<Self>, ConfigError> {
        let mut files = Vec::new();
        for path in paths {
            match path.is_dir() {
                true => files
                    .extend(yaml_files(path).map_err(|error| ConfigError::in_file(&path.to_string_lossy(), error))?),
                false => files.push(path.clone()),
            }
        }
        files.iter().map(|file| Self::read(file)).collect()
    }
}

/// The files in a folder that end in `.yaml` or `.yml` and do not begin with a dot, by name.
fn yaml_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = folder.read_dir()?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|file| {
        let is_yaml = file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        is_yaml && file.is_file() && !file.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
    });
    files.sort();
    Ok(files)
}
