"""Seeded lines of mixed text that a tokenizer may stumble over."""

import random

WORDS = """the of and to in a is that for it as was with be by on not he i this are or his from at which but have an had
they you were their one all we can her has there been if more when will would who so no print return static const auto
import self None true false struct template Straße naïve café œuvre Ελληνικά κόσμος русский текст עברית العربية हिन्दी
ภาษาไทย 한국어 日本語 テスト 東京タワー 中文字符 你好世界 繁體 ひらがな カタカナ ﬁne ½ ² ① Ⅷ ǅ ß ẞ İ ı""".split()
CODE = ["def f(x):\n    return x**2 + 1\n", "for (int i=0;i<n;++i){a[i]+=b[i]*c;}", "<div class=\"a\">&nbsp;</div>",
        "SELECT * FROM t WHERE a>=1 AND b!='x';", "#include <vector>\n\ttemplate<typename T>", "x = {'a': [1, 2.5e-3]}",
        "git commit -m \"msg\" && ./run --flag=1", "\\frac{a}{b}\\sum_{i=1}^{n}", "https://a.b/c?d=e&f=%20#g", "\t\tif x:\r\n\t\t\tpass"]
EMOJI = ["😀", "👨‍👩‍👧‍👦", "🇫🇷", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "❤️", "👍🏽", "🌍", "☎", "⌚️", "\U0001fae8", "\U0001f6d8"]
MARKS = ["e\u0301", "a\u0308\u0323", "\u0301", "q\u0307\u0323", "\u093f", "\u20dd", "\u0e33", "Z\u0351\u036b\u0343\u036a"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "\u2028", "\x85", "\x0b",
          "\x0c", "\u200b", "\ufeff", " \t \n \t"]
CONTROLS = ["\x00", "\x01", "\x1b[0m", "\x7f", "\x80", "\x9f", "\ufffd", "\ufffe", "\ue000", "\U0010ffff", "\u200d", "\u202e",
            "\u0378", "\U000e0001", "\ufe0f"]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "——", "…", "“", "”", "«", "、", "。", "！", "？", "·", "′", "€",
                                                            "©", "™", "±", "→", "∀", "▁", "｜", "＜", "！！", "'s", "'ll", "!a"]
NUMBERS = ["1", "12", "123", "1234", "1234567890", "3.14159", "1e-9", "0x1F", "٣٤٥", "१२३", "Ⅻ", "¾", "２０２６", "𝟘𝟙𝟚", "1,000,000",
           "20251129", "①②③④"]


def any_code_point(rng):
    while True:
        c = rng.choice([rng.randrange(0x250), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x110000)])
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def line(rng, special):
    kind = rng.randrange(12)
    if kind == 0:  # a long run
        unit = rng.choice([rng.choice(SPACES), rng.choice(PUNCTUATION), rng.choice(NUMBERS), rng.choice(MARKS), "a", "Z", "中",
                           "あ", any_code_point(rng)])
        return unit * rng.randrange(1, 300)
    if kind == 1:
        return "".join(any_code_point(rng) for _ in range(rng.randrange(1, 60)))
    if kind == 2:
        return "".join(rng.choice(CODE) for _ in range(rng.randrange(1, 4)))
    if kind <= 5:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 30)))
    pools = [WORDS, WORDS, SPACES, SPACES, PUNCTUATION, PUNCTUATION, NUMBERS, EMOJI, MARKS, CONTROLS, CODE]
    if kind == 11:
        pools = pools[:8] + [special] * 3 + [[t[:-1] for t in special], [t[1:] for t in special]]
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(1, 40)))


def lines(count, seed, special):
    rng = random.Random(seed)
    return [line(rng, special) for _ in range(count)]
