//! Writing a file's bytes as pieces that a blob store can hold, with one piece in memory at a time.

use std::mem;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tailstep_core::{files::FileContent, limits::files::CHUNK_BYTES};

use crate::ports::{Blobs, BlobsError};

/// Takes a file's bytes as they come. Pieces that were written stay in the store when the writer is
/// dropped; nothing names them then.
pub struct ContentWriter<'a> {
    blobs: &'a dyn Blobs,
    tenant: &'a str,
    chunk_bytes: usize,
    whole: Sha256,
    piece: Vec<u8>,
    content: FileContent,
}

impl<'a> ContentWriter<'a> {
    pub fn new(blobs: &'a dyn Blobs, tenant: &'a str) -> Self {
        Self::with_chunk_bytes(blobs, tenant, CHUNK_BYTES)
    }

    fn with_chunk_bytes(blobs: &'a dyn Blobs, tenant: &'a str, chunk_bytes: usize) -> Self {
        let content = FileContent { size_bytes: 0, sha256: String::new(), chunks: Vec::new() };
        Self { blobs, tenant, chunk_bytes, whole: Sha256::new(), piece: Vec::new(), content }
    }

    /// Bytes taken so far.
    pub fn size_bytes(&self) -> u64 {
        self.content.size_bytes
    }

    /// # Errors
    /// The store's own; the file cannot be finished then.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), BlobsError> {
        self.whole.update(bytes);
        self.content.size_bytes = self.content.size_bytes.saturating_add(bytes.len() as u64);
        while !bytes.is_empty() {
            let room = self.chunk_bytes.saturating_sub(self.piece.len());
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.piece.extend_from_slice(now);
            bytes = later;
            if self.piece.len() >= self.chunk_bytes {
                self.put().await?;
            }
        }
        Ok(())
    }

    /// # Errors
    /// The store's own.
    pub async fn finish(mut self) -> Result<FileContent, BlobsError> {
        if !self.piece.is_empty() {
            self.put().await?;
        }
        for byte in self.whole.finalize() {
            self.content.sha256.push_str(&format!("{byte:02x}"));
        }
        Ok(self.content)
    }

    async fn put(&mut self) -> Result<(), BlobsError> {
        let piece = Bytes::from(mem::take(&mut self.piece));
        let blob = self.blobs.put(self.tenant, piece).await?;
        self.content.chunks.push(blob);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tailstep_core::ids::sha256_hex;

    use super::*;
    use crate::memory::MemoryBlobs;

    #[tokio::test]
    async fn pieces_are_full_but_the_last_and_give_the_bytes_back() {
        let blobs = MemoryBlobs::default();
        let bytes: Vec<u8> = (0..=255).collect();
        for (length, step, sizes) in [
            (0, 1, &[][..]),
            (1, 1, &[1]),
            (100, 7, &[100]),
            (101, 101, &[100, 1]),
            (250, 99, &[100, 100, 50]),
        ] {
            let mut writer = ContentWriter::with_chunk_bytes(&blobs, "t", 100);
            for part in bytes[..length].chunks(step) {
                writer.write(part).await.unwrap();
            }
            let content = writer.finish().await.unwrap();
            let found: Vec<u64> = content.chunks.iter().map(|chunk| chunk.bytes).collect();
            assert_eq!(found, sizes);
            assert_eq!(content.size_bytes, length as u64);
            assert_eq!(content.sha256, sha256_hex(&bytes[..length]));
            let mut whole = Vec::new();
            for chunk in &content.chunks {
                whole.extend_from_slice(&blobs.get("t", chunk).await.unwrap());
            }
            assert_eq!(whole, bytes[..length]);
        }
    }
}
