"""A grid search with scikit-learn
===============================

A network as an estimator of scikit-learn, with scaling, grid search and cross-validation.

The hidden layers are a string, so they can be searched like any other parameter. Prints the score
of each setting, and classifies almost all held-out wines correctly, within seconds.

To run it::

    pip install '.[sklearn]'
    python examples/grid_search.py
"""

from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from brainstorm.ext.estimators import NetClassifier

EPOCHS = 30
SPECS = ["F10", "F20 D0.2", "Ft10 Ft10"]  # as in brainstorm.tools.create_net_from_spec


def main():
    """Search for the best hidden layers and return the accuracy on held-out data."""
    X, y = load_wine(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    pipeline = make_pipeline(StandardScaler(), NetClassifier(max_epochs=EPOCHS, random_state=0))
    search = GridSearchCV(pipeline, {"netclassifier__spec": SPECS}, cv=3)
    search.fit(X_train, y_train)
    for spec, score in zip(SPECS, search.cv_results_["mean_test_score"], strict=True):
        print(f"{spec:10} {score:.2%}")
    best = search.best_estimator_.named_steps["netclassifier"]
    print(best.network_)
    accuracy = search.score(X_test, y_test)
    print(f"accuracy on {len(y_test)} held-out wines: {accuracy:.2%}")
    return accuracy


if __name__ == "__main__":
    main()
