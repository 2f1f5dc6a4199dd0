"""Calibrated probabilities
========================

With few rows, many weights explain the labels. A point estimate uses one set of weights, and its
probabilities are overconfident. An average over the posterior is calibrated better. The data are
those of `load_diabetes`. The label says whether the disease gets worse than in half of the
patients. There are sixty patients in the fit and 382 in the test, in twenty splits.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import epfast

X, progression = load_diabetes(return_X_y=True)
y = (progression > np.median(progression)).astype(int)
models = {
    "LogisticRegression, no penalty": LogisticRegression(C=1e4, max_iter=5000),
    "LogisticRegression()": LogisticRegression(),
    "epfast.LinearClassifier()": epfast.LinearClassifier(),
}


def held_out(rows):
    """Labels, and what each model says of them, in twenty splits."""
    truth, answers = [], {name: [] for name in models}
    for seed in range(20):
        train, test, y_train, y_test = train_test_split(X, y, train_size=rows, random_state=seed)
        truth.append(y_test)
        for name, model in models.items():
            fit = make_pipeline(StandardScaler(), model).fit(train, y_train)
            answers[name].append(fit.predict_proba(test)[:, 1])
    return truth, answers


def tell(truth, answers):
    for name, parts in answers.items():
        each = [log_loss(*pair) for pair in zip(truth, parts, strict=True)]
        print(f"{name}: log loss {np.mean(each):.3f} ± {np.std(each) / np.sqrt(len(each)):.3f}")


truth, answers = held_out(60)
tell(truth, answers)

# %%
# Log loss is minus the mean log probability of what happened: lower is better. In the picture each
# point is a tenth of the predictions, with an interval of 95 %. On the dashed line as many got
# worse as was predicted. A curve that is flatter than the line is overconfident. Ticks above and
# below are the patients who got worse, and those who did not ("+1" is worse).

figure, axes = plt.subplots(1, 3, figsize=(12, 4.6))
label = np.concatenate(truth)
for ax, (name, parts) in zip(axes, answers.items(), strict=True):
    p = np.concatenate(parts)
    epfast.plots.calibration(label, p, ax=ax)
    ax.set_title(name)
plt.show()

# %%
# When it makes no difference
# ---------------------------
#
# With five times the rows the posterior is narrow, and a point estimate is as good. Log losses of
# the three are within a standard error or two of each other:

tell(*held_out(300))
