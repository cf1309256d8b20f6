//! A lexer for shell scripts, with enough of the grammar to find the commands.
//!
//! Crates that split words (`shlex`, `shell-words`) do not report which words were quoted, so an
//! `&&` or a line break inside a string would end the command. The lexer runs nothing and returns
//! no errors: unfinished quotes end with the script.

use std::{iter::Peekable, str::Chars};

/// The longest script that is read, in bytes; the rest is dropped.
const LONGEST: usize = 64 << 10;
/// The most words of a script that are read.
const MOST_WORDS: usize = 4096;

/// Returns the simple commands of `script`, each as its words.
pub(super) fn commands(script: &str) -> Vec<Vec<String>> {
    let mut end = script.len().min(LONGEST);
    while !script.is_char_boundary(end) {
        end -= 1;
    }
    let mut lexer = Lexer {
        rest: script[..end].chars().peekable(),
        word: None,
        command: Vec::new(),
        commands: Vec::new(),
        documents: Vec::new(),
        words: 0,
    };
    lexer.run();
    lexer.commands
}

struct Lexer<'a> {
    rest: Peekable<Chars<'a>>,
    /// The current word; `Some("")` is an empty quoted word.
    word: Option<String>,
    command: Vec<String>,
    commands: Vec<Vec<String>>,
    /// Delimiters of the here-documents that start at the next line.
    documents: Vec<String>,
    words: usize,
}

impl Lexer<'_> {
    fn run(&mut self) {
        while self.words < MOST_WORDS
            && let Some(c) = self.rest.next()
        {
            match c {
                ' ' | '\t' | '\r' => self.end_word(),
                '\n' => {
                    self.end_command();
                    self.skip_documents();
                }
                ';' | '&' | '|' | '(' | ')' => self.end_command(),
                '<' | '>' => self.redirect(c),
                '#' if self.word.is_none() => self.skip_comment(),
                _ => self.part(c),
            }
        }
        self.end_command();
    }

    /// Reads a part of a word that starts with `c`.
    fn part(&mut self, c: char) {
        let word = self.word.get_or_insert_default();
        match c {
            '\\' => match self.rest.next() {
                // The line continues: this starts no new word.
                Some('\n') => self.word = self.word.take().filter(|word| !word.is_empty()),
                Some(escaped) => word.push(escaped),
                None => {}
            },
            '\'' => word.extend(self.rest.by_ref().take_while(|&c| c != '\'')),
            '"' => self.double_quoted(),
            '$' => self.dollar(),
            '`' => {
                word.push('`');
                word.extend(self.rest.by_ref().take_while(|&c| c != '`'));
            }
            other => word.push(other),
        }
    }

    fn double_quoted(&mut self) {
        while let Some(c) = self.rest.next() {
            let word = self.word.get_or_insert_default();
            match c {
                '"' => return,
                '\\' => match self.rest.next() {
                    Some('\n') | None => {}
                    Some(c @ ('$' | '`' | '"' | '\\')) => word.push(c),
                    Some(c) => word.extend(['\\', c]),
                },
                '$' => self.dollar(),
                other => word.push(other),
            }
        }
    }

    /// Reads a variable or a command substitution, and keeps its text.
    fn dollar(&mut self) {
        let word = self.word.get_or_insert_default();
        word.push('$');
        let (open, close) = match self.rest.peek() {
            Some('(') => ('(', ')'),
            Some('{') => ('{', '}'),
            _ => return,
        };
        let mut depth = 0_usize;
        for c in self.rest.by_ref() {
            word.push(c);
            depth += usize::from(c == open);
            depth -= usize::from(c == close);
            if depth == 0 {
                return;
            }
        }
    }

    fn redirect(&mut self, c: char) {
        self.end_word();
        if self.rest.next_if_eq(&'&').is_some() || c == '>' || self.rest.next_if_eq(&'<').is_none()
        {
            return;
        }
        if self.rest.next_if_eq(&'<').is_some() {
            return;
        }
        self.rest.next_if_eq(&'-');
        while self.rest.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
        let mut end = String::new();
        while let Some(c) = self
            .rest
            .next_if(|c| !c.is_whitespace() && !";&|()".contains(*c))
        {
            if !matches!(c, '\'' | '"' | '\\') {
                end.push(c);
            }
        }
        self.documents.push(end);
    }

    fn skip_documents(&mut self) {
        for end in std::mem::take(&mut self.documents) {
            while self.rest.peek().is_some() {
                let line: String = self.rest.by_ref().take_while(|&c| c != '\n').collect();
                if line.trim_start_matches('\t').trim_end_matches('\r') == end {
                    break;
                }
            }
        }
    }

    fn skip_comment(&mut self) {
        while self.rest.next_if(|&c| c != '\n').is_some() {}
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take() {
            self.words += 1;
            self.command.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        if !self.command.is_empty() {
            self.commands.push(std::mem::take(&mut self.command));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(script: &str, expected: &[&[&str]]) {
        assert_eq!(commands(script), expected, "{script:?}");
    }

    #[test]
    fn commands_and_words() {
        check("", &[]);
        check(
            "a b;c&&d|e&f",
            &[&["a", "b"], &["c"], &["d"], &["e"], &["f"]],
        );
        check(
            "a 'b && c' \"d;$e\" f\\ g ''",
            &[&["a", "b && c", "d;$e", "f g", ""]],
        );
        check("a \\\n  --b # c; d\n# e\nf", &[&["a", "--b"], &["f"]]);
        check(
            "(cd x && y) > log 2>&1 < in",
            &[&["cd", "x"], &["y"], &["log", "2", "1", "in"]],
        );
        check(
            "a=$(b | c) \"${d:-e f}\" `g;h` i#j",
            &[&["a=$(b | c)", "${d:-e f}", "`g;h", "i#j"]],
        );
        check(
            "cat <<-'EOF' > f\na && b\n\tEOF\nc <<< d",
            &[&["cat", "f"], &["c", "d"]],
        );
        check("a \"b\\\"c\\d\\\ne", &[&["a", "b\"c\\de"]]);
        check("a 'b", &[&["a", "b"]]);
        check("a $(b", &[&["a", "$(b"]]);
    }

    #[test]
    fn a_long_script_is_cut() {
        assert_eq!(
            commands(&"x ".repeat(MOST_WORDS * 2)).concat().len(),
            MOST_WORDS
        );
        let long = "ä".repeat(LONGEST);
        assert!(commands(&long).concat().concat().len() <= LONGEST);
    }

    proptest! {
        #[test]
        fn any_script_has_words(script in "[ab$(){}'\"`<>\\\\&|;# \n\t-]{0,60}") {
            for command in commands(&script) {
                prop_assert!(!command.is_empty());
            }
        }

        #[test]
        fn quoted_words_come_back(words in prop::collection::vec("\\PC{0,12}", 1..6)) {
            let quoted: Vec<_> = words.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
            prop_assert_eq!(commands(&quoted.join(" ")), vec![words]);
        }
    }
}
