from tierlog.pipeline.source.datasource import TierlogDataSource

__all__ = ["TierlogDataSource"]
