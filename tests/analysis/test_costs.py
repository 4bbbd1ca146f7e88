from repair_hf.analysis import costs
from repair_hf.llm.cost import Usage, format_dollars, price_per_token

FLASH = "gemini/gemini-2.5-flash"

# Tokens (in, out) per mined triplet and stage: the paper's means over 1,000 triplets of each direction.
PAPER_TOKENS = {
    "flickr30k": {
        ("audit", "i2t"): (707.3, 80.3),
        ("instruct", "i2t"): (981.4, 61.7),
        ("edit", "i2t"): (597.9, 45.9),
        ("audit", "t2i"): (1064.6, 101.0),
        ("instruct", "t2i"): (279.0, 25.8),
    },
    "coco30k": {
        ("audit", "i2t"): (701.9, 69.5),
        ("instruct", "i2t"): (706.7, 31.1),
        ("edit", "i2t"): (382.2, 25.2),
        ("audit", "t2i"): (1063.3, 95.3),
        ("instruct", "t2i"): (214.9, 20.6),
    },
}


def price(tokens_in: float, tokens_out: float) -> float:
    each_in, each_out = price_per_token(FLASH)
    return tokens_in * each_in + tokens_out * each_out


def test_the_papers_token_table_comes_out_of_its_counts():
    """The paper's sample is 1,000 triplets of each direction."""
    printed = {
        "flickr30k": "2,286.6 187.9 2,474.5  1,343.6 126.8 1,470.4  3,630.2 314.7 3,944.9  $1.88",
        "coco30k": "1,790.8 125.8 1,916.6  1,278.2 115.9 1,394.1  3,069.0 241.7 3,310.7  $1.52",  # the paper: $1.53
    }
    for dataset, numbers in printed.items():
        paid = {}
        for place, (tokens_in, tokens_out) in PAPER_TOKENS[dataset].items():
            tokens = round(1000 * tokens_in), round(1000 * tokens_out)
            paid[place] = Usage(1000, 0, *tokens, price(*tokens))
        rows = {row[:2]: row for row in costs.paid_rows(paid)}
        found = [cell for way in ("i2t", "t2i", "both") for cell in rows["all", way][3:6]]
        assert [*found, rows["all", "both"][6]] == numbers.split()
        assert rows["all", "i2t"][2] == 3000 and ("edit", "t2i") not in rows


def test_answers_without_a_price_make_no_sum():
    paid = {("audit", "i2t"): Usage(2, 0, 10, 1, 0.5), ("audit", "t2i"): Usage(2, 0, 10, 1, 0.0, unpriced=1)}
    rows = {row[:2]: row[6] for row in costs.paid_rows(paid)}
    assert (rows["all", "i2t"], rows["all", "t2i"], rows["all", "both"]) == ("$0.50", "unknown", "unknown")
    assert costs.describe_paid(paid) == "Unknown: 1 of 4 answers have no list price. They used 0.0 K tokens."
    assert costs.describe_paid({("audit", "i2t"): Usage(2, 0, 10, 1, 0.5)}).startswith("$0.50 for 2 answers")
    assert costs.describe_paid({}).startswith("Unknown: there is no ledger")
    assert costs.paid_rows({}) == [("all", "both", 0, "0.0", "0.0", "0.0", "$0.00")]


def test_small_amounts_keep_their_digits():
    shown = [format_dollars(amount) for amount in (None, 0.0, 0.0312, 0.001, 12345.678)]
    assert shown == ["unknown", "$0.00", "$0.03", "<$0.01", "$12,345.68"]
