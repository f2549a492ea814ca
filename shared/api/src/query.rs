//! Query strings: brackets, repeated arrays, dates; as strict as bodies are.

use crate::{error::ApiError, stamp};

/// The parameters of one request, being read.
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
    asked: Vec<String>,
}

impl Query {
    pub(crate) fn of(query: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes())
            .into_owned()
            // Older clients send it on every path; it says nothing here.
            .filter(|(name, _)| name != "beta")
            .collect();
        Self { pairs, asked: Vec::new() }
    }

    /// All values of `name`, in order.
    pub(crate) fn all(&mut self, name: &str) -> Vec<String> {
        self.asked.push(name.to_owned());
        let mut values = Vec::new();
        self.pairs.retain_mut(|(given, value)| {
            let found = given == name;
            if found {
                values.push(std::mem::take(value));
            }
            !found
        });
        values
    }

    /// An array, sent as `name[]=a&name[]=b`.
    pub(crate) fn list(&mut self, name: &str) -> Vec<String> {
        self.all(&format!("{name}[]"))
    }

    /// The value of `name`; an empty one counts as absent.
    pub(crate) fn one(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let mut values = self.all(name);
        if values.len() > 1 {
            return Err(ApiError::invalid(format!("{name}: is given more than once")));
        }
        Ok(values.pop().filter(|value| !value.is_empty()))
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        match self.one(name)?.as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(ApiError::invalid(format!("{name}: must be true or false"))),
        }
    }

    pub(crate) fn count(&mut self, name: &str) -> Result<Option<u64>, ApiError> {
        let wrong = || ApiError::invalid(format!("{name}: must be a whole number from 1"));
        match self.one(name)? {
            None => Ok(None),
            Some(text) => match text.parse::<u64>() {
                Ok(count) if count > 0 => Ok(Some(count)),
                Ok(_) | Err(_) => Err(wrong()),
            },
        }
    }

    pub(crate) fn limit(&mut self, default: usize, max: usize) -> Result<usize, ApiError> {
        match self.count("limit")? {
            None => Ok(default),
            Some(limit) => match usize::try_from(limit) {
                Ok(limit) if limit <= max => Ok(limit),
                Ok(_) | Err(_) => Err(ApiError::invalid(format!("limit: must be from 1 to {max}"))),
            },
        }
    }

    pub(crate) fn order(&mut self, default: Order) -> Result<Order, ApiError> {
        match self.one("order")?.as_deref() {
            None => Ok(default),
            Some("asc") => Ok(Order::Asc),
            Some("desc") => Ok(Order::Desc),
            Some(_) => Err(ApiError::invalid("order: must be asc or desc")),
        }
    }

    /// The filter `created_at[gt|gte|lt|lte]`.
    pub(crate) fn created_at(&mut self) -> Result<TimeRange, ApiError> {
        let mut bound = |which: &str| {
            let name = format!("created_at[{which}]");
            match self.one(&name)? {
                None => Ok(None),
                Some(text) => stamp::parse(&text).map(Some).ok_or_else(|| {
                    ApiError::invalid(format!(
                        "{name}: must be an RFC 3339 time such as 2026-11-30T12:00:00Z"
                    ))
                }),
            }
        };
        Ok(TimeRange { gt: bound("gt")?, gte: bound("gte")?, lt: bound("lt")?, lte: bound("lte")? })
    }

    /// Refuses what was not asked for.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        let Some((name, _)) = self.pairs.first() else { return Ok(()) };
        let shown: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
        let allowed = if self.asked.is_empty() { "none".to_owned() } else { self.asked.join(", ") };
        Err(ApiError::invalid(format!("{shown}: unknown query parameter; allowed here: {allowed}")))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Asc,
    Desc,
}

impl Order {
    pub(crate) fn reversed(self) -> Self {
        match self {
            Self::Asc => Self::Desc,
            Self::Desc => Self::Asc,
        }
    }

    pub(crate) fn is_desc(self) -> bool {
        self == Self::Desc
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Asc => "asc",
            Self::Desc => "desc",
        }
    }
}

/// Bounds in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TimeRange {
    gt: Option<i128>,
    gte: Option<i128>,
    lt: Option<i128>,
    lte: Option<i128>,
}

impl TimeRange {
    pub(crate) fn is_open(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn holds(&self, ms: u64) -> bool {
        let at = stamp::nanos(ms);
        self.gt.is_none_or(|bound| at > bound)
            && self.gte.is_none_or(|bound| at >= bound)
            && self.lt.is_none_or(|bound| at < bound)
            && self.lte.is_none_or(|bound| at <= bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_may_be_percent_encoded() {
        let mut query = Query::of(Some(
            "types[]=a&types%5B%5D=b%20c&beta=true&created_at%5Bgte%5D=1970-01-01T00:00:01Z",
        ));
        assert_eq!(query.list("types"), ["a", "b c"]);
        let range = query.created_at().unwrap();
        assert!(range.holds(1_000) && !range.holds(999));
        query.finish().unwrap();
    }

    #[test]
    fn wrong_parameters_are_named() {
        let message = |error: ApiError| {
            error.body("r")["error"]["message"].as_str().unwrap_or_default().to_owned()
        };
        let mut query = Query::of(Some("limit=0&flag=yes&order=up&x=1&created_at[lt]=now"));
        assert!(message(query.limit(20, 100).unwrap_err()).starts_with("limit:"));
        assert!(message(query.flag("flag").unwrap_err()).starts_with("flag:"));
        assert!(message(query.order(Order::Asc).unwrap_err()).starts_with("order:"));
        assert!(message(query.created_at().unwrap_err()).starts_with("created_at[lt]:"));
        assert!(message(query.finish().unwrap_err()).starts_with("x: unknown query parameter"));
    }
}
