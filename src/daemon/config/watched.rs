//! The files and folders to watch for changes of the configuration.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::source::Folder;

/// The most links on the way to a file, as in Linux.
const MAX_LINKS: usize = 40;

/// Names and folders whose changes can change the configuration.
#[derive(Debug, Default)]
pub struct Watched {
    /// Every name in the path of a file: folders, links and their targets, and the file itself.
    names: BTreeSet<PathBuf>,
    /// Folders of which every file counts.
    folders: BTreeSet<PathBuf>,
}

impl Watched {
    /// Adds a file, or a folder with all that is in it.
    pub fn add(&mut self, path: &Path, ignore_dot_files: bool) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let resolved = self.follow(&path, &mut 0);
        if !resolved.is_dir() {
            return;
        }
        let Ok(folder) = Folder::read(&resolved, ignore_dot_files) else { return };
        for file in &folder.files {
            self.follow(file, &mut 0);
        }
        self.folders.extend(folder.folders);
    }

    /// The folders that the system has to watch. It reports no changes of their subfolders.
    pub fn places(&self) -> BTreeSet<&Path> {
        self.names.iter().filter_map(|name| name.parent()).chain(self.folders.iter().map(PathBuf::as_path)).collect()
    }

    /// Whether a change of this path can change the configuration.
    pub fn concerns(&self, changed: &Path) -> bool {
        self.names.contains(changed) || changed.parent().is_some_and(|folder| self.folders.contains(folder))
    }

    /// Adds every name on the way along an absolute path; returns where it leads.
    fn follow(&mut self, path: &Path, links: &mut usize) -> PathBuf {
        let mut reached = PathBuf::new();
        for component in path.components() {
            match component {
                Component::ParentDir => drop(reached.pop()),
                Component::Normal(name) => {
                    let named = reached.join(name);
                    self.names.insert(named.clone());
                    reached = match std::fs::read_link(&named) {
                        Ok(target) if *links < MAX_LINKS => {
                            *links += 1;
                            self.follow(&reached.join(target), links)
                        }
                        _ => named,
                    };
                }
                other => reached.push(other),
            }
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_link_on_the_way_counts() {
        let root = fs::canonicalize(std::env::temp_dir()).unwrap().join(format!("swlimitd-{}", std::process::id()));
        for folder in ["versions/1/config/below", "elsewhere"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("elsewhere/real"), "").unwrap();
        symlink("versions/1", root.join("current")).unwrap();
        symlink("../../../elsewhere/real", root.join("versions/1/config/link")).unwrap();
        symlink("loop", root.join("loop")).unwrap();

        let mut watched = Watched::default();
        watched.add(&root.join("current/config"), true);
        watched.add(&root.join("loop"), true);
        for name in ["current", "versions", "versions/1/config", "versions/1/config/new", "versions/1/config/below/new"]
        {
            assert!(watched.concerns(&root.join(name)), "{name}");
        }
        for name in ["elsewhere/real", "elsewhere", "loop"] {
            assert!(watched.concerns(&root.join(name)), "{name}");
        }
        for name in ["other", "versions/2", "elsewhere/other"] {
            assert!(!watched.concerns(&root.join(name)), "{name}");
        }
        for place in ["", "versions", "versions/1/config/below", "elsewhere"] {
            assert!(watched.places().contains(&*root.join(place)) || place.is_empty(), "{place}");
        }
        fs::remove_dir_all(root).unwrap();
    }
}
