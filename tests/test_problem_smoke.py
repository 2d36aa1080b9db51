from convalgos.problem import ConvProblem


def test_text_form_round_trips():
    text = "n2 c4 h9 w9 k4 r3 s3 p0:1,2 stride2,1 groups4 channels_last float64"
    assert str(ConvProblem.parse(text)) == text
