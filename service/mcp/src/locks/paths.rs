//! Paths as locks: a path is held exclusively, and each folder above it is shared. So two sessions work side by side in different
//! subtrees, and one that wants a folder waits for all that work below it.

use std::collections::BTreeMap;
use std::path::{Component, Path};

/// Keys, each with whether it is locked exclusively.
pub type Locks = BTreeMap<String, bool>;

/// A tree of files whose paths are locked.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Names the tree to all sessions that share it, wherever their checkouts are.
    pub name: String,
    /// The folder of this checkout: absolute paths must be in it.
    pub root: Option<Box<Path>>,
}

impl Tree {
    /// The path from the root of the tree, without a slash at either end. Empty for the root.
    ///
    /// # Errors
    /// Says which rule the path breaks.
    pub fn relative(&self, text: &str) -> Result<String, String> {
        let path = Path::new(text);
        let root = self.root.as_deref().filter(|_| path.is_absolute()).unwrap_or(Path::new(""));
        let below = path.strip_prefix(root).map_err(|_| format!("{text:?} is not in {}", root.display()))?;
        let mut names = Vec::new();
        for component in below.components() {
            match component {
                Component::Normal(name) => names.push(name.to_string_lossy()),
                Component::CurDir => {}
                _ => return Err(format!("{text:?} must be relative to the root of the repository, without `..`")),
            }
        }
        if text.is_empty() { Err("a path is empty: the root is `.`".to_owned()) } else { Ok(names.join("/")) }
    }

    /// The key of a path.
    pub fn key(&self, path: &str) -> String {
        format!("path/{}:{path}", self.name)
    }

    /// What is locked together for these relative paths.
    pub fn locks(&self, paths: &[String]) -> Locks {
        let mut is_exclusive = BTreeMap::new();
        for path in paths {
            for above in folders_above(path) {
                is_exclusive.entry(above).or_insert(false);
            }
            is_exclusive.insert(path, true);
        }
        // A path below another one is held with it.
        let is_covered = |path: &str| folders_above(path).any(|above| is_exclusive.get(above) == Some(&true));
        let locks = is_exclusive.iter().filter(|(path, _)| !is_covered(path));
        locks.map(|(path, is_exclusive)| (self.key(path), *is_exclusive)).collect()
    }
}

/// The folders that contain the path, the root of the tree first.
pub fn folders_above(path: &str) -> impl Iterator<Item = &str> {
    let root = (!path.is_empty()).then_some("");
    root.into_iter().chain(path.match_indices('/').map(|(end, _)| &path[..end]))
}

/// Whether one path contains the other, or both are the same.
pub fn overlap(one: &str, other: &str) -> bool {
    one == other || folders_above(one).any(|above| above == other) || folders_above(other).any(|above| above == one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        Tree { name: "shop".to_owned(), root: Some(Path::new("/work/shop").into()) }
    }

    #[test]
    fn a_path_has_one_key_however_it_is_written() {
        for text in ["src/billing", "src/billing/", "./src//billing", "/work/shop/src/./billing"] {
            assert_eq!(tree().relative(text).as_deref(), Ok("src/billing"), "{text}");
        }
        assert_eq!((tree().relative(".").as_deref(), tree().relative("/work/shop").as_deref()), (Ok(""), Ok("")));
        for text in ["", "../shop/src", "src/../other", "/work/other", "/work/shop2/src"] {
            assert!(tree().relative(text).is_err(), "{text}");
        }
        assert!(Tree { root: None, ..tree() }.relative("/work/shop/src").is_err());
    }

    #[test]
    fn a_path_is_exclusive_and_the_folders_above_it_are_shared() {
        let locks = |paths: &[&str]| {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            tree().locks(&paths).into_iter().collect::<Vec<_>>()
        };
        let expected = [
            ("path/shop:", false),
            ("path/shop:src", false),
            ("path/shop:src/billing", true),
            ("path/shop:src/web", false),
            ("path/shop:src/web/a.ts", true),
        ];
        let expected = expected.map(|(key, is_exclusive)| (key.to_owned(), is_exclusive));
        assert_eq!(locks(&["src/billing", "src/web/a.ts", "src/billing/tax.rs"]), expected);
        assert_eq!(locks(&["", "src"]), [("path/shop:".to_owned(), true)]);
    }

    #[test]
    fn paths_overlap_if_one_contains_the_other() {
        for (one, other) in [("src", "src/a"), ("", "src"), ("a", "a"), ("src/a/b", "src")] {
            assert!(overlap(one, other) && overlap(other, one), "{one} {other}");
        }
        assert!(!overlap("src/a", "src/ab") && !overlap("src", "srcs/a"));
    }
}
