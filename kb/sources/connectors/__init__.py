"""Where documents come from by themselves: pages, sitemaps, crawls and feeds of the web."""
