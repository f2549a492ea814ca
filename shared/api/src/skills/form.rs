//! A skill's files on their way in: a form whose parts `files[]` have paths as their filenames.

use axum::{
    body::Body,
    http::{HeaderMap, header},
};
use multer::{Constraints, Field, Multipart, SizeLimit, parse_boundary};
use tailstep_core::files::{FileContent, Manifest, OutputFile, is_within};
use tailstep_runtime::content::ContentWriter;

use super::{front, versions::Version};
use crate::{
    Api,
    auth::Caller,
    error::ApiError,
    fields::{self, check_length},
};

/// All files of one skill: instructions, scripts and templates, not data sets.
const BYTES_MAX: u64 = 30 << 20;
const FILES_MAX: usize = 500;

/// The form's own words around each file.
const REST_BYTES_MAX: u64 = FILES_MAX as u64 * 1_024;

/// It is read whole.
const SKILL_MD_BYTES_MAX: usize = 1 << 20;

const PATH_BYTES_MAX: usize = 512;
const DISPLAY_NAME_CHARS_MAX: usize = 256;

const SKILL_MD: &str = "SKILL.md";

pub(super) struct Form {
    pub(super) display_name: Option<String>,
    pub(super) version: Version,
}

impl Form {
    /// What makes two forms the same request.
    pub(super) fn fingerprint(&self) -> String {
        format!("{}\n{:?}", self.version.manifest.sha256, self.display_name)
    }

    pub(super) async fn read(
        api: &Api,
        caller: &Caller,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Self, ApiError> {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let boundary = kind.and_then(|kind| parse_boundary(kind).ok()).ok_or_else(|| {
            ApiError::invalid("content-type: must be multipart/form-data with a boundary")
        })?;
        let bytes_max = BYTES_MAX.min(api.app.upload_bytes_max);
        let whole = SizeLimit::new()
            .whole_stream(bytes_max.saturating_add(REST_BYTES_MAX))
            .for_field("display_name", 4_096)
            .for_field("display_title", 4_096);
        let constraints = Constraints::new().size_limit(whole);
        let form = Multipart::with_constraints(body.into_data_stream(), boundary, constraints);
        let mut parts = Parts::new(api, caller, bytes_max);
        parts.read(form).await?;
        parts.finish().await
    }
}

struct Parts<'a> {
    api: &'a Api,
    caller: &'a Caller,
    bytes_max: u64,
    bytes: u64,
    /// By path, the top directory included.
    files: Vec<(String, FileContent)>,
    skill_md: Option<String>,
    display_name: Option<String>,
}

impl<'a> Parts<'a> {
    fn new(api: &'a Api, caller: &'a Caller, bytes_max: u64) -> Self {
        let (files, skill_md, display_name) = (Vec::new(), None, None);
        Self { api, caller, bytes_max, bytes: 0, files, skill_md, display_name }
    }

    async fn read(&mut self, mut form: Multipart<'_>) -> Result<(), ApiError> {
        while let Some(part) = form.next_field().await.map_err(|e| self.malformed(&e))? {
            match part.name() {
                Some("files[]" | "files") => self.file(part).await?,
                // The second is the name of older clients.
                Some("display_name" | "display_title") => {
                    let text = part.text().await.map_err(|e| self.malformed(&e))?;
                    check_length(&text, "display_name", DISPLAY_NAME_CHARS_MAX)?;
                    self.display_name = Some(text).filter(|text| !text.trim().is_empty());
                }
                Some(_) | None => {
                    return Err(ApiError::invalid(
                        "a part of the form has an unknown name; allowed: files[], display_name",
                    ));
                }
            }
        }
        Ok(())
    }

    async fn file(&mut self, mut part: Field<'_>) -> Result<(), ApiError> {
        let path = fields::filename(&part, "files[]: a filename", PATH_BYTES_MAX)?;
        check_path(&path)?;
        if self.files.len() >= FILES_MAX {
            let what = format!("files[]: more than {FILES_MAX} files");
            return Err(ApiError::invalid(what));
        }
        let clash = |other: &str| is_within(&path, other) || is_within(other, &path);
        if self.files.iter().any(|(other, _)| clash(other)) {
            return Err(ApiError::invalid(
                "files[]: a path is given twice, or is a file and a directory",
            ));
        }
        let is_skill_md = path.split('/').nth(1) == Some(SKILL_MD);
        let mut text = Vec::new();
        let (blobs, tenant) = (self.api.app.blobs.as_ref(), &self.caller.tenant);
        let mut writer = ContentWriter::new(blobs, tenant);
        while let Some(bytes) = part.chunk().await.map_err(|e| self.malformed(&e))? {
            self.bytes = self.bytes.saturating_add(bytes.len() as u64);
            if self.bytes > self.bytes_max {
                return Err(self.too_large());
            }
            if is_skill_md {
                text.extend_from_slice(&bytes);
            }
            if text.len() > SKILL_MD_BYTES_MAX {
                let what = format!("files[]: SKILL.md is longer than {SKILL_MD_BYTES_MAX} bytes");
                return Err(ApiError::invalid(what));
            }
            writer.write(&bytes).await?;
        }
        if is_skill_md {
            let text = String::from_utf8(text);
            let text = text.map_err(|_| ApiError::invalid("files[]: SKILL.md is not UTF-8"))?;
            self.skill_md = Some(text);
        }
        self.files.push((path, writer.finish().await?));
        Ok(())
    }

    async fn finish(mut self) -> Result<Form, ApiError> {
        let top = |path: &str| path.split('/').next().unwrap_or_default().to_owned();
        let Some(directory) = self.files.first().map(|(path, _)| top(path)) else {
            return Err(ApiError::invalid("files[]: is required; send each file as a part"));
        };
        if self.files.iter().any(|(path, _)| top(path) != directory) {
            return Err(ApiError::invalid("files[]: all files must lie in one top directory"));
        }
        let Some(text) = &self.skill_md else {
            return Err(ApiError::invalid(format!("files[]: {directory}/{SKILL_MD} is missing")));
        };
        let front::Front { name, description } = front::read(text)?;
        let mut manifest = Manifest::empty();
        self.files.sort_by(|a, b| a.0.cmp(&b.0));
        for (path, content) in self.files {
            let path = path[directory.len() + 1..].to_owned();
            // No time: the same files are the same manifest.
            manifest.files.push(OutputFile { path, content, collected_at_ms: 0 });
        }
        let encoded = manifest.encode().map_err(|error| {
            tracing::error!(%error, "a manifest could not be written");
            ApiError::internal()
        })?;
        let manifest = self.api.app.blobs.put(&self.caller.tenant, encoded.into()).await?;
        let version = Version { name, description, directory, manifest };
        Ok(Form { display_name: self.display_name, version })
    }

    fn too_large(&self) -> ApiError {
        ApiError::too_large(format!("files[]: together more than {} bytes", self.bytes_max))
    }

    /// The details are not repeated: they can hold what the client sent.
    fn malformed(&self, error: &multer::Error) -> ApiError {
        if matches!(error, multer::Error::StreamSizeExceeded { .. }) {
            return self.too_large();
        }
        ApiError::invalid(
            "the request body is no whole multipart form, or a part of it is too long",
        )
    }
}

/// A directory and what is in it, in plain names.
fn check_path(path: &str) -> Result<(), ApiError> {
    let plain = |name: &str| !name.is_empty() && name != "." && name != ".." && name.len() < 256;
    let names: Vec<&str> = path.split('/').collect();
    if names.len() < 2
        || names.len() > 16
        || !names.iter().all(|name| plain(name))
        || path.chars().any(|c| c.is_control() || c == '\\')
    {
        return Err(ApiError::invalid(
            "files[]: a filename must be a path such as my-skill/SKILL.md, without `.`, `..`, `\\`, \
             empty names and control characters",
        ));
    }
    Ok(())
}
