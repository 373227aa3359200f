"""How dates and times are written: alike in all languages, and with the offset of the site's time zone."""
