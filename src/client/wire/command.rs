//! A command of the server.

/// A command, word by word. The words are kept in one place, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    words: Vec<u8>,
    ends: Vec<usize>,
    key: usize,
}

impl Command {
    /// A command upon one key, which is its first word.
    pub fn on(name: &str, key: &[u8]) -> Self {
        Self::named(name, 1).word(key)
    }

    /// A command whose key, by which a cluster finds the node, is this word; the name is word 0.
    pub fn named(name: &str, key: usize) -> Self {
        let command = Self { words: Vec::with_capacity(128), ends: Vec::with_capacity(12), key };
        command.word(name.as_bytes())
    }

    /// One more word.
    #[must_use]
    pub fn word(mut self, word: &[u8]) -> Self {
        self.words.extend_from_slice(word);
        self.ends.push(self.words.len());
        self
    }

    /// One more number.
    #[must_use]
    pub fn number(self, number: u64) -> Self {
        self.written(format_args!("{number}"))
    }

    /// One more duration, in ms.
    #[must_use]
    pub fn ms(self, ms: u64) -> Self {
        self.written(format_args!("{ms}ms"))
    }

    fn written(mut self, word: std::fmt::Arguments<'_>) -> Self {
        use std::io::Write;
        // Writing to memory does not fail.
        let _ = self.words.write_fmt(word);
        self.ends.push(self.words.len());
        self
    }

    /// The name.
    pub fn name(&self) -> &[u8] {
        self.words().next().unwrap_or_default()
    }

    /// The words, the name first.
    pub fn words(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.ends.iter().scan(0, |start, &end| self.words.get(std::mem::replace(start, end)..end))
    }

    /// The key by which a cluster finds the node, if there is one.
    pub fn key(&self) -> Option<&[u8]> {
        let start = *self.ends.get(self.key.checked_sub(1)?)?;
        self.words.get(start..*self.ends.get(self.key)?)
    }

    /// How many words there are, and their bytes together.
    pub fn size(&self) -> (usize, usize) {
        (self.ends.len(), self.words.len())
    }
}
