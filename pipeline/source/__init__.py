from pipeline.source.datasource import TierlogDataSource

__all__ = ["TierlogDataSource"]
