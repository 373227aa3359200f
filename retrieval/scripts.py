"""Which characters belong to which kind of script, as bodies of regular expressions' character classes."""

# Chinese, Japanese and Korean. Runs of these go to the segmenter.
CJK = "\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
# One letter or digit of any other script: their words end where these do.
LATIN = rf"[^\W_{CJK}]"
